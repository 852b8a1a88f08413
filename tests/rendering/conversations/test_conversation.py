from __future__ import annotations

import json
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import parse_conversation, tool_names


@pytest.mark.parametrize(
    ("record", "path", "reason"),
    [
        ([1], "$", "is a list; expected one JSON object a record"),
        ({"prompt": "x"}, "$.messages", "is missing; expected a list of messages, found the keys prompt"),
        ({"messages": "x"}, "$.messages", "is a string; expected a list"),
        ({"messages": []}, "$.messages", "is empty"),
        ({"messages": ["x"]}, "$.messages[0]", "is a string; expected an object"),
        ({"messages": [{"content": "x"}]}, "$.messages[0].role", "is missing"),
        ({"messages": [{"role": 7, "content": "x"}]}, "$.messages[0].role", "is 7; expected a string"),
        ({"messages": [{"role": "user", "content": 5}]}, "$.messages[0].content", "is a number"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}, {"type": "image_url"}]}]},
            "$.messages[0].content[1].type",
            'is "image_url"; tokscore renders text only',
        ),
        (
            {"messages": [{"role": "user", "content": "See <image>."}], "images": ["a.png"]},
            "$.images",
            "is a list; tokscore renders text only",
        ),
        ({"messages": [{"role": "user"}], "tools": {}}, "$.tools", "is an object; expected a list"),
        ({"messages": [{"role": "a", "tool_calls": ["x"]}]}, "$.messages[0].tool_calls[0]", "is a string"),
        (
            {"messages": [{"role": "a", "tool_calls": [{"id": "1"}]}]},
            "$.messages[0].tool_calls[0]",
            "has no name",
        ),
        ({"id": "x" * 1001, "messages": [{"role": "user"}]}, "$.id", "has 1,001 characters"),
        ({"messages": [{"role": "x" * 1001}]}, "$.messages[0].role", "has 1,001 characters"),
        ({"messages": [{"role": "tool", "name": "x" * 1001}]}, "$.messages[0].name", "has 1,001 characters"),
        (
            {"messages": [{"role": "user"}], "chat_template_kwargs": 1},
            "$.chat_template_kwargs",
            "is a number",
        ),
    ],
)
def test_a_bad_record_names_its_path(record: Any, path: str, reason: str) -> None:
    with pytest.raises(ConversationError) as caught:
        parse_conversation(json.dumps(record).encode())
    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b'{"messages": [', "is not JSON"), (b'{"messages": "\xff"}', "is not"), (b"[" * 5000, "")],
)
def test_a_damaged_line_is_one_error(line: bytes, reason: str) -> None:
    with pytest.raises(ConversationError) as caught:
        parse_conversation(line)
    assert reason in caught.value.reason


def test_tool_results_find_the_name_of_their_tool() -> None:
    messages = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "f"}}, {"id": "2", "name": "g"}],
        },
        {"role": "tool", "tool_call_id": "1"},
        {"role": "tool", "tool_call_id": "2"},
        {"role": "tool", "name": "h"},
        {"role": "tool"},
    ]
    assert tool_names(messages) == [None, "f", "g", "h", None]


def test_metadata_is_kept_as_json() -> None:
    parsed = parse_conversation(
        b'{"messages": [{"role": "user", "content": null}], "metadata": {"reward": 1.5}}'
    )
    assert parsed.metadata == '{"reward":1.5}'
