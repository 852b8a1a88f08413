"""Answers of the Responses API to what the record does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place

ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}


def parse(record: dict[str, Any]) -> Trace:
    trace = load_format("openai-responses").parse(record, Place(Path("a.jsonl"), 1))
    assert isinstance(trace, Trace)
    return trace


@pytest.mark.parametrize(
    ("record", "path", "reason"),
    [
        ({"id": "resp_1"}, "$.input", "is missing; expected the input of the request beside its output"),
        (
            {"input": "And?", "previous_response_id": "resp_0"},
            "$.previous_response_id",
            "stands for messages that the record lacks",
        ),
        ({"input": "And?", "conversation": {"id": "conv_1"}}, "$.conversation", "stands for messages"),
    ],
)
def test_an_answer_without_all_of_its_prompt_is_refused(
    record: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(ConversationError, match=reason) as caught:
        parse({**record, "output": [ANSWER]})
    assert caught.value.path == path


def test_a_whole_request_is_read_with_the_empty_keys_of_a_server() -> None:
    record = {"input": "Hi", "output": [ANSWER], "previous_response_id": None, "conversation": None}
    trace = parse(record)
    assert ([node.messages[0]["role"] for node in trace.nodes], trace.status) == (["user", "assistant"], None)


@pytest.mark.parametrize(
    ("reasoning", "status"),
    [
        ({"summary": [], "encrypted_content": "gAAA"}, "redacted_reasoning"),
        ({"summary": [{"type": "summary_text", "text": "So"}]}, None),
    ],
)
def test_reasoning_without_text_is_told_by_the_status(reasoning: dict[str, Any], status: str | None) -> None:
    assert parse({"input": "Hi", "output": [{"type": "reasoning", **reasoning}, ANSWER]}).status == status
