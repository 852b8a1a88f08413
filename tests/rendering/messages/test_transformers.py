"""Messages as transformers itself shows them to templates; docs/messages.md has a line for each."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.templates.render import prepare_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "assistant", "content": "x", "tool_calls": [{"name": "f", "arguments": None}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": "x", "reasoning_details": [{"text": "r"}], "refusal": "no"},
        {"role": "developer", "content": "d", "weight": 1},
    ],
    ids=str,
)
def test_most_messages_stay_as_they_are(message: dict[str, Any]) -> None:
    assert prepare_messages([message]) == [message]


def test_keys_that_are_null_are_left_out() -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": None}
    assert prepare_messages([message]) == [{"role": "assistant"}]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_goes_by_the_names_that_templates_read(key: str) -> None:
    (shown,) = prepare_messages([{"role": "assistant", "content": "x", key: "r"}])
    names = {"reasoning_content", "thinking", key}
    assert shown == {"role": "assistant", "content": "x", **dict.fromkeys(names, "r")}
