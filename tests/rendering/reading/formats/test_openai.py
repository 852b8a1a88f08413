"""What stands beside messages, or in roles of their own, in records of the Chat Completions form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering import Conversation
from tokscore.rendering.reading.formats import detect_format, parse_record
from tokscore.rendering.reading.formats.format import Place

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = {"name": "f", "arguments": {"p": 1}}


def parse(record: dict[str, Any]) -> Conversation:
    found = detect_format(record)
    assert found is not None
    conversation = parse_record(record, found, Place(Path("a.jsonl"), 1))
    assert isinstance(conversation, Conversation)
    return conversation


def called(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": each} for each in calls],
    }


@pytest.mark.parametrize("encode", [json.dumps, dict])
def test_calls_that_are_messages_belong_to_the_answer_before_them(encode: Any) -> None:
    messages = [
        USER,
        {**ANSWER, "content": "Wait."},
        {"role": "tool_call", "content": encode(CALL)},
        {"role": "tool_call", "content": encode({**CALL, "arguments": {}})},
        {"role": "tool_response", "content": encode({"r": "é"})},
        {"role": "tool_response", "content": "none"},
        {"role": "tool_call", "content": encode(CALL)},
        {"role": "tool_response", "content": "3"},
        ANSWER,
    ]
    conversation = parse({"messages": messages, "tools": json.dumps([TOOL])})
    result = {"role": "tool", "content": json.dumps({"r": "é"}, ensure_ascii=encode is json.dumps)}
    assert conversation.messages == [
        USER,
        called("Wait.", CALL, {**CALL, "arguments": {}}),
        result,
        {"role": "tool", "content": "none"},
        called("", CALL),
        {"role": "tool", "content": "3"},
        ANSWER,
    ]
    assert conversation.tools == [{"type": "function", "function": TOOL}]


def test_a_call_that_is_none_is_an_error_with_its_place() -> None:
    messages = [
        USER,
        {"role": "tool_call", "content": json.dumps(CALL)},
        {"role": "tool_call", "content": "f()"},
    ]
    with pytest.raises(ConversationError, match="is text that is none; expected") as caught:
        parse({"messages": messages})
    assert caught.value.path == "$.messages[2].content"


def test_a_role_of_that_name_that_holds_other_text_stays_as_it_is() -> None:
    messages = [USER, {"role": "tool_call", "content": "f()"}, {"role": "tool_response", "content": "3"}]
    assert parse({"messages": messages}).messages == messages


@pytest.mark.parametrize("encode", [json.dumps, list])
def test_functions_stand_for_tools(encode: Any) -> None:
    conversation = parse({"messages": [USER, ANSWER], "functions": encode([TOOL])})
    assert conversation.tools == [{"type": "function", "function": TOOL}]


def test_tools_of_alpaca_are_no_metadata() -> None:
    conversation = parse({"instruction": "Hi", "output": "Yes", "tools": json.dumps([TOOL])})
    assert (conversation.tools, conversation.metadata) == ([TOOL], None)


@pytest.mark.parametrize("functions", [["f"], [{"code": "def f(): ..."}], [TOOL, {"body": "x"}], {"f": 1}, 3])
def test_functions_that_define_no_tools_are_none(functions: Any) -> None:
    assert parse({"messages": [USER, ANSWER], "functions": functions}).tools is None


def test_tools_go_before_functions() -> None:
    conversation = parse({"messages": [USER, ANSWER], "functions": [TOOL], "tools": [{**TOOL, "name": "g"}]})
    assert conversation.tools == [{**TOOL, "name": "g"}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("response", "Yes"),
        ("response", ANSWER),
        ("response", {"choices": [{"message": ANSWER}]}),
        ("choices", [{"index": 0, "message": ANSWER}]),
        ("completion", "Yes"),
        ("responses", ["Yes", "No"]),
    ],
)
def test_an_answer_beside_its_messages_is_no_metadata(key: str, value: object) -> None:
    with pytest.raises(ConversationError, match="beside messages that end without an answer") as caught:
        parse({"messages": [USER], key: value})
    assert caught.value.path == f"$.{key}"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER], "response": "Yes"},
        {"messages": [USER], "choices": ["A", "B"]},
        {"messages": [USER], "answer": "42", "response": None, "completions": []},
    ],
)
def test_what_is_no_unread_answer_is_left_alone(record: dict[str, Any]) -> None:
    assert parse(record).messages == record["messages"]
