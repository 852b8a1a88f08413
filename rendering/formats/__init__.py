"""The formats of trajectories that tokscore reads, one module each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.rendering.conversations import Conversation
from tokscore.rendering.errors import ConversationError, UsageError
from tokscore.rendering.traces import Trace

# In the order in which a first record is tried; adding a format takes one module and one line.
FORMATS: Mapping[str, str] = {
    "verifiers": "tokscore.rendering.formats.verifiers:FORMAT",
    "verifiers-results": "tokscore.rendering.formats.verifiers_results:FORMAT",
    "prime-rl": "tokscore.rendering.formats.prime_rl:FORMAT",
    "openai-batch": "tokscore.rendering.formats.openai_batch:FORMAT",
    "atropos": "tokscore.rendering.formats.atropos:FORMAT",
    "tokens": "tokscore.rendering.formats.tokens:FORMAT",
    "swe-agent": "tokscore.rendering.formats.swe_agent:FORMAT",
    "sharegpt": "tokscore.rendering.formats.sharegpt:FORMAT",
    "trl": "tokscore.rendering.formats.trl:FORMAT",
    "text-dump": "tokscore.rendering.formats.text_dump:FORMAT",
    "openai": "tokscore.rendering.formats.openai:FORMAT",
}


class Place(NamedTuple):
    """Where a record was read.

    Attributes:
        path: The input as the user named it; some formats keep the training step in a folder's name.
        number: 1-based line or element.
    """

    path: Path
    number: int


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
    """The format that a record looks like, None where it looks like none."""
    formats = (load_format(name) for name in FORMATS)
    return next((each for each in formats if each.matches(record)), None)


def parse_record(
    record: Mapping[str, Any], chosen: Format, place: Place
) -> Trace | Conversation:  # Any: JSON
    """The trajectory in a record of the chosen format.

    Raises:
        ConversationError: It cannot be used, or is of another format.
    """
    if not chosen.matches(record):
        other = detect_format(record)
        if other is not None and other is not chosen:
            raise ConversationError(
                f"looks like the format {other.name}, and the records before it like {chosen.name}; "
                "expected one format a run.",
                hint=f"Give the files one by one, or --input-format {other.name}.",
            )
    return chosen.parse(record, place)
