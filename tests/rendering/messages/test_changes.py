from __future__ import annotations

from typing import Any

import pytest

from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.messages.changes import CHANGES, Change, change_messages

CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def answer(**more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **more}


def arguments(value: object) -> dict[str, Any]:
    return answer(tool_calls=[{**CALL, "function": {"name": "f", "arguments": value}}])


def changed(message: dict[str, Any], *flags: MessageFlag, role: str = "") -> dict[str, Any]:
    return dict(change_messages([message], [Change(flag, role) for flag in flags]).messages[0])


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("{", "{"),
        ("[1]", "[1]"),
        ("7", "7"),
    ],
)
def test_arguments_become_the_object_that_their_text_stands_for(given: object, shown: object) -> None:
    assert changed(arguments(given), MessageFlag.ARGUMENTS) == arguments(shown)


@pytest.mark.parametrize("given", ["{", "[1]", "7", "[" * 100_000])
def test_arguments_that_are_no_object_are_replaced_only_where_that_is_wanted(given: str) -> None:
    assert changed(arguments(given), MessageFlag.ARGUMENTS) == arguments(given)
    found = change_messages([arguments(given)], [Change(MessageFlag.ARGUMENTS_LOST)])
    assert found.messages == [arguments({})]
    assert found.flags == {0: (MessageFlag.ARGUMENTS_LOST,)}


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_content_that_is_missing_becomes_empty(message: dict[str, Any]) -> None:
    assert changed(message, MessageFlag.EMPTY_CONTENT) == answer()


def test_text_parts_of_the_role_are_joined_by_newlines() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "thinking", "thinking": "c"},
    ]
    assert changed(answer(content=parts), MessageFlag.PARTS, role="assistant") == answer(content="a\nb\nc")
    assert changed(answer(content=parts), MessageFlag.PARTS, role="user") == answer(content=parts)


@pytest.mark.parametrize("part", [{"type": "image"}, {"type": "text"}, {"type": "text", "text": None}, 7])
def test_parts_that_are_no_text_stay(part: object) -> None:
    message = answer(content=[{"type": "text", "text": "a"}, part])
    assert changed(message, MessageFlag.PARTS, role="assistant") == message


def test_a_function_call_and_its_result_become_those_of_a_tool() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "7"},
    ]
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = change_messages(messages, [Change(MessageFlag.FUNCTION_CALL)])
    assert found.messages == [
        messages[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "f", "content": "7", "tool_call_id": "call00001"},
    ]
    assert set(found.flags) == {1, 2}


def test_a_function_call_beside_tool_calls_stays() -> None:
    message = answer(tool_calls=[CALL], function_call={"name": "g", "arguments": "{}"})
    assert changed(message, MessageFlag.FUNCTION_CALL) == message


@pytest.mark.parametrize(
    "call",
    [
        {"id": "call00001", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "call00001", "name": "f", "arguments": {"a": 1}},
        {"id": "call00001", "type": None, "function": {"name": "f", "arguments": {"a": 1}}},
        CALL,
    ],
)
def test_calls_get_their_type_and_their_function(call: dict[str, Any]) -> None:
    assert changed(answer(tool_calls=[call]), MessageFlag.CALL_FORM) == answer(tool_calls=[CALL])


def ids(*given: str | None) -> list[Any]:
    messages: list[dict[str, Any]] = [answer(tool_calls=[{**CALL, "id": identifier} for identifier in given])]
    messages += [{"role": "tool", "content": "7", "tool_call_id": identifier} for identifier in given]
    shown = change_messages(messages, [Change(MessageFlag.CALL_IDS)]).messages
    calls = [call["id"] for call in shown[0]["tool_calls"]]
    assert calls == [message["tool_call_id"] for message in shown[1:]]
    assert len(set(calls)) == len(calls)
    assert all(len(found) == 9 and found.isalnum() for found in calls)
    return calls


def test_long_ids_are_cut_to_their_last_nine_characters() -> None:
    assert ids("call_a1b2c3d4e5", "ABCDEFGHI") == ["1b2c3d4e5", "ABCDEFGHI"]


@pytest.mark.parametrize(
    "given", [("a", "b"), ("call_1-2-3-4-5", "x"), ("AAA123456789", "BBB123456789"), (None, None)]
)
def test_other_ids_are_made_up_and_stay_apart(given: tuple[str | None, ...]) -> None:
    ids(*given)


def test_keys_that_no_server_passes_on_go_where_the_template_reads_them() -> None:
    message = answer(weight=1, thinking="t", refusal=None)
    found = change_messages([message], [Change(MessageFlag.KEYS)], read={"thinking", "content"})
    assert found.messages == [answer(weight=1, refusal=None)]


def test_empty_calls_are_left_out() -> None:
    assert changed(answer(tool_calls=[]), MessageFlag.NO_CALLS) == answer()


def test_what_servers_do_not_change_is_the_very_same_message_without_a_flag() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        answer(tool_calls=[CALL]),
    ]
    found = change_messages(messages, CHANGES)
    assert all(a is b for a, b in zip(found.messages, messages, strict=True))
    assert not found.flags
