"""One row of the registry of formats, and the place of a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.documents.document import Document

# Where messages and tools in the OpenAI form have objects whose keys are those of each record.
OPEN_KEYS = frozenset(
    {"tools", "functions", "tool_calls", "function_call", "arguments", "parameters", "content"}
)
# In the order in which they are asked.
ID_KEYS = ("id", "custom_id", "instance_id")


class Place(NamedTuple):
    """Where a record was read.

    Attributes:
        path: The input as the user named it; some formats keep the training step in a folder's name.
        number: 1-based line or element.
    """

    path: Path
    number: int


def _never(_record: Mapping[str, Any]) -> bool:  # Any: JSON values
    """For formats that never do; a function with a name, since formats are sent to other processes."""
    return False


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: As given to `input_format`.
        fields: The fields that are read, in the words of the project that writes them.
        has_logprobs: Records can carry logprobs.
        has_branches: One record can hold several branches.
        example: One record as a line of JSON.
        matches: Whether a first record looks like this format.
        parse: The trajectory, or the text, in one record; raises ConversationError with the JSON path, what
            was found and what was expected.
        holds_ids: Whether a record carries token ids in the fields of this format; never without any.
        fits: Whether a record that looks like another format is as well one of this, among others of it.
        token_id_keys: Keys of a record below which its token ids are; none for a format without ids.
        id_keys: Keys of a record that may hold its name, text or a whole number; the first that does counts.
            Several in a tuple are joined by "-" where all of them do. A key that begins with `$` is a path.
        is_served: A server wrote the records, and changed their messages before a template saw them.
        group_key: Key of a record by which neighbours belong together; they stay in one part.
        open_keys: In Parquet files, keys below which objects lack the keys that are null.
        records_key: Key of an object that holds records of this format in a list, as files of results do.
        archive_members: Pattern of the names under which a zip archive holds the records, one JSON file each.
    """

    name: str
    fields: str
    has_logprobs: bool
    has_branches: bool
    example: str
    matches: Callable[[Mapping[str, Any]], bool]  # Any: JSON values
    parse: Callable[[Mapping[str, Any], Place], Trace | Conversation | Document]  # Any: JSON values
    holds_ids: Callable[[Mapping[str, Any]], bool] = _never  # Any: JSON values
    fits: Callable[[Mapping[str, Any]], bool] = _never  # Any: JSON values
    token_id_keys: frozenset[str] = frozenset()
    id_keys: tuple[str | tuple[str, ...], ...] = ID_KEYS
    group_key: str = "group"
    is_served: bool = False
    open_keys: frozenset[str] = OPEN_KEYS
    records_key: str = ""
    archive_members: str = ""

    @property
    def has_ids(self) -> bool:
        """Whether records can carry token ids."""
        return bool(self.token_id_keys)
