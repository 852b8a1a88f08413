"""Reasoning in front of an answer, in the blocks of Anthropic's API."""

from __future__ import annotations

from collections.abc import Sequence

from tokscore.rendering.reading.formats.fields import get, object_at


def thinking_text(blocks: Sequence[object], path: str) -> str:
    """The text of thinking blocks, empty where all are redacted.

    Args:
        blocks: `{type, thinking}` each.
        path: JSON path of their list.

    Raises:
        ConversationError: Some block is no object, or its text no text.
    """
    found = [object_at(block, f"{path}[{i}]") for i, block in enumerate(blocks)]
    texts = [get(each, "thinking", str, f"{path}[{i}]", "text") for i, each in enumerate(found)]
    return "".join(text for text in texts if text)
