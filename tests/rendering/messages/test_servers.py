"""Messages as vLLM itself shows them; docs/messages.md has a line for each."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

from tokscore.dataset.tokens import MessageFlag  # noqa: E402
from tokscore.rendering.messages.changes import CHANGES, Change, change_messages  # noqa: E402

Message = dict[str, Any]
USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SERVED = [each for each in CHANGES if each.flag not in (MessageFlag.FUNCTION_CALL, MessageFlag.CALL_IDS)]
SERVED += [Change(MessageFlag.ARGUMENTS_LOST), Change(MessageFlag.KEYS)]
READ = {"thinking", "function_call", "reasoning_details", "refusal", "audio", "weight"}


def arguments(value: str) -> Message:
    return {**CALL, "function": {"name": "f", "arguments": value}}


def by_vllm(model: Path, message: Message) -> Message:
    from vllm.config import ModelConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.chat_utils import parse_chat_messages
    from vllm.renderers.hf import _convert_developer_to_system

    request = ChatCompletionRequest(model="m", messages=[copy.deepcopy(message), USER])
    config = ModelConfig(model=str(model), tokenizer=str(model))
    shown, _, _ = parse_chat_messages(request.messages, config, content_format="string")
    return dict(_convert_developer_to_system(shown)[0])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "assistant", "content": "x", "tool_calls": [arguments("")]},
        {"role": "assistant", "content": "x", "tool_calls": [arguments("{")]},
        {"role": "assistant", "content": "x", "tool_calls": [arguments("[1]")]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]},
        {"role": "assistant", "content": "x", "refusal": None, "audio": None},
        {"role": "assistant", "content": "x", "thinking": "r"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "x", "name": "Ada", "weight": 1},
        {"role": "tool", "content": "x", "name": "f", "tool_call_id": "c"},
    ],
    ids=str,
)
def test_a_message_is_shown_as_vllm_shows_it(tiny_model: Path, message: Message) -> None:
    found = change_messages([message], SERVED, read=READ).messages[0]
    shown = {key: value for key, value in found.items() if value is not None}
    assert shown == by_vllm(tiny_model, message)


@pytest.mark.parametrize(
    "call", [{key: CALL[key] for key in ("id", "function")}, {"name": "f", "arguments": "{}"}], ids=str
)
def test_vllm_refuses_calls_without_their_type(tiny_model: Path, call: Message) -> None:
    with pytest.raises(ValueError, match=r"type|Field required"):
        by_vllm(tiny_model, {"role": "assistant", "content": "x", "tool_calls": [call]})


def test_vllm_refuses_an_empty_list_of_tools() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="tools"):
        ChatCompletionRequest(model="m", messages=[USER], tools=[])


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_vllm_passes_reasoning_on_under_both_names(tiny_model: Path, key: str) -> None:
    shown = by_vllm(tiny_model, {"role": "assistant", "content": "x", key: "r"})
    assert shown == {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}
