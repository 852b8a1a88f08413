"""`text`: plain text that was never a chat, one document a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.documents.document import Document
from tokscore.rendering.reading.fields.values import metadata_text, need
from tokscore.rendering.reading.formats.format import Format, Place

NAME = "text"
_TEXT = "text"
# Beside one of these, the text is a part of something else.
_OTHERS = frozenset(
    {
        "messages",
        "conversations",
        "conversation",
        "prompt",
        "completion",
        "completions",
        "chosen",
        "rejected",
        "instruction",
        "input",
        "output",
        "question",
        "answer",
        "response",
        "responses",
        "role",
        "tools",
    }
)


def _matches(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get(_TEXT), str) and _OTHERS.isdisjoint(record)


def _parse(record: Mapping[str, Any], _place: Place) -> Document:
    text = need(record, _TEXT, str, "$", "text")
    if not text:
        raise ConversationError("is empty; expected text.", path=f"$.{_TEXT}")
    return Document(text, metadata_text(record, [key for key in record if key not in (_TEXT, "id")]))


FORMAT = Format(
    name=NAME,
    fields="text, tokenised as it is, without a template; all other fields are metadata. A file whose name "
    "ends with .txt is one document, unless it holds JSON; so is any file of text with `input_format='text'`",
    has_logprobs=False,
    has_branches=False,
    example='{"id": "a", "text": "The quick brown fox jumps over the lazy dog."}',
    matches=_matches,
    parse=_parse,
)
