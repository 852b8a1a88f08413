"""Answers that stand beside the messages of a record instead of behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.values import kind_of

# Beside messages that end with a question, they hold its answer.
_ANSWERS = ("response", "responses", "completion", "completions", "choices")


def check_answered(record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a record whose answer stands where it would not be read.

    Args:
        record: A JSON object.
        messages: What was read of it, at least one.

    Raises:
        ConversationError: It has an answer, and they end without one.
    """
    if messages[-1]["role"] == "assistant":
        return
    for key in _ANSWERS:
        value = record.get(key)
        is_options = key == "choices" and not (
            isinstance(value, list) and all(isinstance(each, dict) and "message" in each for each in value)
        )
        if value and isinstance(value, str | list | dict) and not is_options:
            raise ConversationError(
                f"is {kind_of(value)} beside messages that end without an answer; expected it as the last of "
                "them.",
                path=f"$.{key}",
                hint="Put it behind the messages; or rename it, if no model is to be scored on it. Requests "
                "and answers of a server are read as `input_format='openai-batch'`.",
            )
