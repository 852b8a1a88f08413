from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHATML
from tokscore.dataset.tokens import NOT_PRINTED
from tokscore.rendering import ChatTokenizer, Conversation, Renderer

ANSWER = {"role": "assistant", "content": "a"}
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
CALLING = CHATML.replace(
    "{{ message.content }}", "{{ message.content }}{{ message.tool_calls }}{{ message.name }}"
)
BESIDE = "{% for m in messages %}{% if m.content %}{{ m.content }}{% else %}{{ m.tool_calls }}{% endif %}{% endfor %}"
WHOLE = "{% for m in messages %}{{ m | tojson }}{% endfor %}"


def unprinted(model: Path, message: dict[str, Any], template: str = CHATML) -> list[str]:
    rendering = Renderer(ChatTokenizer(str(model), template=template))
    messages = [{"role": "user", "content": "q"}, message, {"role": "user", "content": "q"}]
    first, found, last = rendering.render(Conversation(messages)).messages
    assert not any(flag.startswith(NOT_PRINTED) for flag in (*first.flags, *last.flags))
    return [flag.removeprefix(NOT_PRINTED) for flag in found.flags if flag.startswith(NOT_PRINTED)]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"function_call": {"name": "f", "arguments": "{}"}}, ["function_call"]),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "r"}]}, ["reasoning_details"]),
        ({"reasoning": "r"}, ["reasoning_content", "reasoning", "thinking"]),
        ({"refusal": "no", "weight": 0}, ["refusal", "weight"]),
        ({"name": "Ada"}, ["name"]),
        ({"tool_calls": CALLS}, ["tool_calls"]),
        ({"refusal": None, "audio": None, "annotations": [], "tool_calls": [], "note": " "}, []),
        ({}, []),
    ],
)
def test_keys_that_a_template_neither_prints_nor_reads_are_named(
    tiny_model: Path, more: dict[str, object], expected: list[str]
) -> None:
    assert sorted(unprinted(tiny_model, {**ANSWER, **more})) == sorted(expected)


def test_the_name_of_a_tool_is_used_all_the_same(tiny_model: Path) -> None:
    assert unprinted(tiny_model, {"role": "tool", "content": "7", "name": "f", "tool_call_id": "1"}) == []


@pytest.mark.parametrize("more", [{"tool_calls": CALLS}, {"name": "Ada"}])
def test_keys_that_a_template_reads_are_not(tiny_model: Path, more: dict[str, object]) -> None:
    assert unprinted(tiny_model, {**ANSWER, **more}, CALLING) == []


def test_calls_that_are_left_out_in_one_message_are_named_there(tiny_model: Path) -> None:
    assert unprinted(tiny_model, {**ANSWER, "tool_calls": CALLS}, BESIDE) == ["tool_calls"]
    assert unprinted(tiny_model, {**ANSWER, "content": "", "tool_calls": CALLS}, BESIDE) == []


def test_a_template_that_prints_whole_messages_prints_every_key(tiny_model: Path) -> None:
    assert unprinted(tiny_model, {**ANSWER, "weight": 1, "note": {"a": ["b"]}}, WHOLE) == []
