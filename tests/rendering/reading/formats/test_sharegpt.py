"""Conversations of from and value."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.reading.formats.sharegpt import FORMAT as SHAREGPT

from .message_records import ADD, conversation, failure, metadata, records, said, trace


def test_sharegpt_speakers_become_roles() -> None:
    one, two, three = (conversation(record) for record in records("sharegpt.jsonl")[:3])
    assert [message["role"] for message in one.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [(message["role"], message["content"]) for message in two.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello!"),
        ("user", "And now?"),
        ("assistant", "Bye."),
    ]
    assert [message["role"] for message in three.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_sharegpt_reads_system_tools_and_metadata_where_they_are() -> None:
    one, two, three = (conversation(record) for record in records("sharegpt.jsonl")[:3])
    assert one.messages[0] == {"role": "system", "content": "Use the tools."}
    assert one.tools == three.tools == [ADD]
    assert metadata(one) == {"source": "sums"}
    assert (two.tools, two.metadata) == (None, None)


def test_sharegpt_function_calls_become_tool_calls() -> None:
    one, _, three = (conversation(record) for record in records("sharegpt.jsonl")[:3])
    assert one.messages[2]["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    ]
    calls = three.messages[1]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_sharegpt_reads_the_conversations_of_a_json_array() -> None:
    found = [conversation(record) for record in records("sharegpt_identity.json")]
    assert [len(each.messages) for each in found] == [4, 2]
    assert found[0].messages[0] == {"role": "user", "content": "Who are you?"}


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (
            {"from": "narrator", "value": "Once"},
            '.from is "narrator"; expected one of system, human, user, gpt, chatgpt, assistant, bot, model, '
            "function_call, tool, observation, function.",
        ),
        ({"from": "gpt"}, ".value is missing; expected text, found the keys from."),
        ({"from": "gpt", "value": ["Hi"]}, ".value is a list; expected text."),
        ("Hi", " is a string; expected an object."),
        (
            {"from": "function_call", "value": "add(2, 2)"},
            ".value is not JSON: JSON is malformed: invalid character (byte 0); expected "
            '{"name", "arguments"} or a list of them, as JSON text.',
        ),
        (
            {"from": "function_call", "value": '[{"arguments": {}}]'},
            '.value holds an object without a name; expected {"name", "arguments"} or a list of them, as JSON text.',
        ),
    ],
)
def test_sharegpt_says_what_is_wrong_with_a_turn(turn: object, expected: str) -> None:
    record = {"conversations": [{"from": "human", "value": "Hi"}, turn]}
    assert failure(SHAREGPT, record) == f"$.conversations[1]{expected}"


def test_sharegpt_refuses_two_system_texts() -> None:
    record = records("sharegpt.jsonl")[1] | {"system": "Be long."}
    assert failure(SHAREGPT, record) == (
        '$.system is "Be long.", and the first message is another system text; expected one of them.'
    )


def test_sharegpt_refuses_a_conversation_without_messages() -> None:
    assert failure(SHAREGPT, {"conversations": []}) == (
        "$.conversations is empty; expected a list with at least one message."
    )


def test_sharegpt_chosen_and_rejected_are_branches() -> None:
    found = trace(SHAREGPT, records("sharegpt.jsonl")[3])
    prompt = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Sum?")]
    assert said(found) == [[*prompt, ("assistant", "4")], [*prompt, ("assistant", "5 or 6")]]
    assert [node.is_sampled for node in found.nodes] == [False, False, False, True, True]
    assert metadata(found) == {"score": 0.5, "branches": ["chosen", "rejected"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rejected": None}, "$.rejected is missing; expected an object with from and value"),
        ({"chosen": "4"}, "$.chosen is a string; expected an object with from and value"),
        ({"chosen": {"from": "human", "value": "4"}}, '$.chosen.from is "human"; expected a speaker who is'),
        ({"rejected": {"from": "gpt"}}, "$.rejected.value is missing; expected text"),
    ],
)
def test_sharegpt_says_what_is_wrong_with_a_preference(change: dict[str, Any], expected: str) -> None:
    assert failure(SHAREGPT, records("sharegpt.jsonl")[3] | change).startswith(expected)
