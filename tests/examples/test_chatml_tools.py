"""The example template, rendered by transformers with a tokenizer that knows no tokens."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest

Record = dict[str, Any]
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look."}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


@pytest.fixture(scope="module")
def render(tokenizer: Any, template: str) -> Any:
    def to_text(messages: list[Record], **settings: Any) -> str:
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **settings)
        assert isinstance(text, str)
        return text

    return to_text


def test_turns_are_chatml(render: Any) -> None:
    text = render([{"role": "system", "content": "S"}, {"role": "user", "content": " U\n"}])
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U\n<|im_end|>\n"


def test_generation_prompt_only_adds_the_assistant_header(render: Any) -> None:
    messages = [{"role": "user", "content": "U"}]
    assert render(messages, add_generation_prompt=True) == render(messages) + "<|im_start|>assistant\n"


def test_reasoning_stands_before_the_content(render: Any) -> None:
    text = render([{"role": "assistant", "reasoning_content": "R", "content": "A"}])
    assert text == "<|im_start|>assistant\n<think>\nR\n</think>\n\nA<|im_end|>\n"


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_absent_content_leaves_the_tool_call_alone(render: Any, message: Record) -> None:
    text = render([{"role": "assistant", "tool_calls": [CALL], **message}])
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
    assert text == f"<|im_start|>assistant\n{call}<|im_end|>\n"


def test_text_and_several_calls_stand_on_lines_of_their_own(render: Any) -> None:
    text = render([{"role": "assistant", "content": "A", "tool_calls": [CALL, CALL]}])
    assert "\nA\n<tool_call>\n" in text
    assert "</tool_call>\n<tool_call>" in text


def test_arguments_that_are_json_text_are_not_encoded_again(render: Any) -> None:
    written = '{"at":  "\\u00e9"}'
    call = {"function": {"name": "look", "arguments": written}}
    assert f'"arguments": {written}}}' in render([{"role": "assistant", "tool_calls": [call]}])


def test_a_call_without_arguments_gets_an_empty_object(render: Any) -> None:
    text = render([{"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}])
    assert '{"name": "look", "arguments": {}}' in text


def test_tools_join_the_system_turn(render: Any) -> None:
    text = render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], tools=[TOOL])
    system, _, rest = text.partition("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nS\n\n")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in system
    assert "<tools>" not in rest


def test_tools_get_a_system_turn_where_none_is_given(render: Any) -> None:
    text = render([{"role": "user", "content": "U"}], tools=[TOOL])
    assert text.startswith("<|im_start|>system\nYou may call")
    assert text.count("<tools>") == 1


def test_parts_are_joined(render: Any) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render([{"role": "user", "content": parts}]) == render([{"role": "user", "content": "one two"}])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "bot", "content": "x"}, 'role is "bot"'),
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, 'type "image"'),
    ],
)
def test_what_it_cannot_print_is_named(render: Any, message: Record, named: str) -> None:
    with pytest.raises(jinja2.TemplateError, match=named):
        render([message])


@pytest.mark.parametrize("source", ["conversations", "tau_sample"])
def test_longer_conversations_start_with_the_shorter(
    source: str, request: pytest.FixtureRequest, render: Any
) -> None:
    for record in request.getfixturevalue(source):
        messages, tools = record["messages"], record.get("tools")
        whole = render(messages, tools=tools)
        for n_messages in range(1, len(messages)):
            assert whole.startswith(render(messages[:n_messages], tools=tools))


@pytest.mark.parametrize("source", ["conversations", "tau_sample"])
def test_every_text_of_a_conversation_is_printed(
    source: str, request: pytest.FixtureRequest, render: Any
) -> None:
    for record in request.getfixturevalue(source):
        text = render(record["messages"], tools=record.get("tools"))
        for message in record["messages"]:
            assert (message.get("reasoning_content") or "") in text
            content = message.get("content") or ""
            for part in [content] if isinstance(content, str) else [part["text"] for part in content]:
                assert part in text
