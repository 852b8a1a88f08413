"""Anthropic's blocks beside a system message, as proxies and tracers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats import detect_format, load_format, parse_record
from tokscore.rendering.reading.formats.format import Place

CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"p": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}


def test_blocks_beside_a_system_message_are_read() -> None:
    record: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "So"}, CALL]},
            {"role": "user", "content": [RESULT]},
        ]
    }
    found = detect_format(record)
    assert found is not None
    trace = parse_record(record, found, Place(Path("a.jsonl"), 1))
    assert isinstance(trace, Trace)
    function = {"name": "f", "arguments": {"p": 1}}
    assert [node.messages[0] for node in trace.nodes] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "So",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "t1"},
    ]


def test_thoughts_of_mistral_beside_a_system_message_are_no_blocks_of_anthropic() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "So"}]}
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": [thought]}]
    found = detect_format({"messages": messages})
    assert found is not None
    assert found.name == "openai"


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_conversations_without_blocks_stand_beside_those_with_some(system: list[dict[str, Any]]) -> None:
    messages = [*system, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    trace = parse_record({"messages": messages}, load_format("anthropic"), Place(Path("a.jsonl"), 2))
    assert isinstance(trace, Trace)
    assert [node.messages[0] for node in trace.nodes] == messages
    assert [node.is_sampled for node in trace.nodes] == [
        message["role"] == "assistant" for message in messages
    ]


@pytest.mark.parametrize(
    "more",
    [{"functions": [{"name": "f"}]}, {"completion": "So"}, {"messages": [{"role": "tool", "content": "3"}]}],
)
def test_what_anthropic_does_not_have_is_still_of_another_format(more: dict[str, Any]) -> None:
    record = {"messages": [{"role": "user", "content": "Hi"}], **more}
    with pytest.raises(ConversationError, match="looks like the format"):
        parse_record(record, load_format("anthropic"), Place(Path("a.jsonl"), 2))


def test_a_text_that_answers_beside_the_messages_is_an_error() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ConversationError) as caught:
        load_format("anthropic").parse(
            {"system": "Be brief.", "messages": messages, "response": "Hello!"}, Place(Path("a.jsonl"), 1)
        )
    assert (caught.value.path, caught.value.reason) == (
        "$.response",
        "is a string beside messages that end without an answer; expected it as the last of them.",
    )
