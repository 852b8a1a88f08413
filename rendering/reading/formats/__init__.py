"""The formats of trajectories that tokscore reads, one module each.

In: a record as JSON. Out: a conversation, or a trace with its ids, masks and logprobs.
Must not know: files, templates or tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace

# In the order in which a first record is tried; adding a format takes one module and one line.
FORMATS: Mapping[str, str] = {
    "verifiers": "tokscore.rendering.reading.formats.verifiers:FORMAT",
    "verifiers-results": "tokscore.rendering.reading.formats.verifiers_results:FORMAT",
    "prime-rl": "tokscore.rendering.reading.formats.prime_rl:FORMAT",
    "openai-batch": "tokscore.rendering.reading.formats.openai_batch:FORMAT",
    "atropos": "tokscore.rendering.reading.formats.atropos:FORMAT",
    "tokens": "tokscore.rendering.reading.formats.tokens:FORMAT",
    "swe-agent": "tokscore.rendering.reading.formats.swe_agent:FORMAT",
    "sharegpt": "tokscore.rendering.reading.formats.sharegpt:FORMAT",
    "trl": "tokscore.rendering.reading.formats.trl:FORMAT",
    "text-dump": "tokscore.rendering.reading.formats.text_dump:FORMAT",
    "openai": "tokscore.rendering.reading.formats.openai:FORMAT",
}


class Place(NamedTuple):
    """Where a record was read.

    Attributes:
        path: The input as the user named it; some formats keep the training step in a folder's name.
        number: 1-based line or element.
    """

    path: Path
    number: int


def _never(_record: Mapping[str, Any]) -> bool:  # Any: JSON values
    """For formats without ids; a function with a name, since formats are sent to other processes."""
    return False


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: As given to `--input-format`.
        fields: The fields that are read, in the words of the project that writes them.
        has_ids: Records can carry token ids.
        has_logprobs: Records can carry logprobs.
        has_branches: One record can hold several branches.
        example: One record as a line of JSON.
        matches: Whether a first record looks like this format.
        holds_ids: Whether a record carries token ids in the fields of this format; never without any.
        parse: The trajectory in one record; raises ConversationError with the JSON path, what was found and
            what was expected.
    """

    name: str
    fields: str
    has_ids: bool
    has_logprobs: bool
    has_branches: bool
    example: str
    matches: Callable[[Mapping[str, Any]], bool]  # Any: JSON values
    parse: Callable[[Mapping[str, Any], Place], Trace | Conversation]  # Any: JSON values
    holds_ids: Callable[[Mapping[str, Any]], bool] = _never  # Any: JSON values


@lru_cache
def load_format(name: str) -> Format:
    """The format of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in FORMATS:
        raise UsageError(f"there is no input format {name!r}; expected {', '.join(FORMATS)}.")
    module, _, attribute = FORMATS[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, Format)
    return found


def detect_format(record: Mapping[str, Any]) -> Format | None:  # Any: JSON values
    """The format that a record looks like, None where it looks like none; one whose ids it has goes first."""
    with_ids = _format_of_ids(record)
    if with_ids is not None:
        return with_ids
    formats = (load_format(name) for name in FORMATS)
    return next((each for each in formats if each.matches(record)), None)


# A record without any of them has no ids.
_ID_FIELDS = frozenset(
    {"traces", "nodes", "trajectory", "response", "token_ids", "tokens", "prompt_token_ids", "branches"}
)


def _format_of_ids(record: Mapping[str, Any]) -> Format | None:  # Any: JSON values
    if _ID_FIELDS.isdisjoint(record):
        return None
    formats = (load_format(name) for name in FORMATS)
    return next((each for each in formats if each.holds_ids(record)), None)


def parse_record(
    record: Mapping[str, Any], chosen: Format, place: Place, *, is_given: bool = False
) -> Trace | Conversation:  # Any: JSON
    """The trajectory in a record of the chosen format.

    Args:
        record: A JSON object.
        chosen: The format.
        place: Where the record was read.
        is_given: The user named the format, so that token ids which it does not have are left out on purpose.

    Raises:
        ConversationError: It cannot be used, is of another format, or carries token ids that the chosen one
            would not read.
    """
    if not chosen.matches(record) and not chosen.holds_ids(record):
        other = detect_format(record)
        if other is not None and other is not chosen:
            raise ConversationError(
                f"looks like the format {other.name}, and the records before it like {chosen.name}; "
                "expected one format a run.",
                hint=f"Give the files one by one, or --input-format {other.name}.",
            )
    elif not is_given and not _ID_FIELDS.isdisjoint(record) and not chosen.holds_ids(record):
        other = _format_of_ids(record)
        if other is not None:
            raise ConversationError(
                f"carries token ids in the format {other.name}, and the records before it look like "
                f"{chosen.name}, which would leave them out; expected one format a run.",
                hint=f"Give the files one by one, or --input-format {other.name}; "
                f"--input-format {chosen.name} renders the messages instead.",
            )
    return chosen.parse(record, place)
