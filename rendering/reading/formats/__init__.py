"""The formats of trajectories that tokscore reads, one module each.

In: a record as JSON. Out: a conversation, or a trace with its ids, masks and logprobs.
Must not know: files, templates or tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.rendering.reading.formats.format import Format

if TYPE_CHECKING:
    from tokscore.rendering.conversations.conversation import Conversation
    from tokscore.rendering.conversations.trace import Trace
    from tokscore.rendering.documents.document import Document
    from tokscore.rendering.reading.formats.format import Place

# In the order in which a first record is tried; adding a format takes one module and one line.
FORMATS: Mapping[str, str] = {
    "verifiers": "tokscore.rendering.reading.formats.verifiers:FORMAT",
    "verifiers-results": "tokscore.rendering.reading.formats.verifiers_results:FORMAT",
    "prime-rl": "tokscore.rendering.reading.formats.prime_rl:FORMAT",
    "nemo-rl": "tokscore.rendering.reading.formats.nemo_rl:FORMAT",
    "openai-batch": "tokscore.rendering.reading.formats.openai_batch:FORMAT",
    "atropos": "tokscore.rendering.reading.formats.atropos:FORMAT",
    "tokens": "tokscore.rendering.reading.formats.tokens:FORMAT",
    "atif": "tokscore.rendering.reading.formats.atif:FORMAT",
    "swe-agent": "tokscore.rendering.reading.formats.swe_agent:FORMAT",
    "openhands": "tokscore.rendering.reading.formats.openhands:FORMAT",
    "tau-bench": "tokscore.rendering.reading.formats.tau_bench:FORMAT",
    "tau2-bench": "tokscore.rendering.reading.formats.tau2_bench:FORMAT",
    "inspect": "tokscore.rendering.reading.formats.inspect_log:FORMAT",
    "langfuse": "tokscore.rendering.reading.formats.langfuse:FORMAT",
    "otel": "tokscore.rendering.reading.formats.otel:FORMAT",
    "sharegpt": "tokscore.rendering.reading.formats.sharegpt:FORMAT",
    "trl": "tokscore.rendering.reading.formats.trl:FORMAT",
    "text-dump": "tokscore.rendering.reading.formats.text_dump:FORMAT",
    "alpaca": "tokscore.rendering.reading.formats.alpaca:FORMAT",
    "xlam": "tokscore.rendering.reading.formats.xlam:FORMAT",
    "openai-responses": "tokscore.rendering.reading.formats.responses:FORMAT",
    "anthropic": "tokscore.rendering.reading.formats.anthropic:FORMAT",
    "openai": "tokscore.rendering.reading.formats.openai:FORMAT",
    "text": "tokscore.rendering.reading.formats.text:FORMAT",
}


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


def all_formats() -> Iterator[Format]:
    """Every format, in the order in which a first record is tried."""
    return map(load_format, FORMATS)


def detect_format(record: Mapping[str, Any]) -> Format | None:  # Any: JSON values
    """The format that a record looks like, None where it looks like none; one whose ids it has goes first."""
    with_ids = _format_of_ids(record)
    if with_ids is not None:
        return with_ids
    return next((each for each in all_formats() if each.matches(record)), None)


def _format_of_ids(record: Mapping[str, Any]) -> Format | None:  # Any: JSON values
    candidates = (each for each in all_formats() if not each.token_id_keys.isdisjoint(record))
    return next((each for each in candidates if each.holds_ids(record)), None)


def parse_record(
    record: Mapping[str, Any], chosen: Format, place: Place, *, is_given: bool = False
) -> Trace | Conversation | Document:  # Any: JSON
    """The trajectory, or the text, in a record of the chosen format.

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
        is_other = other is not None and (other.holds_ids(record) or not chosen.fits(record))
        if other is not None and is_other and other is not chosen:
            raise ConversationError(
                f"looks like the format {other.name}, and the records before it like {chosen.name}; "
                "expected one format a run.",
                hint=f"Give the files one by one, or `input_format='{other.name}'`.",
            )
    elif not is_given and not chosen.holds_ids(record):
        other = _format_of_ids(record)
        if other is not None:
            raise ConversationError(
                f"carries token ids in the format {other.name}, and the records before it look like "
                f"{chosen.name}, which would leave them out; expected one format a run.",
                hint=f"Give the files one by one, or `input_format='{other.name}'`; "
                f"`input_format='{chosen.name}'` renders the messages instead.",
            )
    return chosen.parse(record, place)
