"""Tool calls and results that are messages of their own, with the roles of ms-swift."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_message
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.messages import tool_call

_CALL, _RESULT = "tool_call", "tool_response"
_EMPTY = {"role": "assistant", "content": ""}
_EXPECTED = '{"name", "arguments"}, also as JSON text'


def has_call_roles(messages: Any) -> bool:  # Any: JSON values
    """Whether a first message with the role `tool_call` holds one; text that is none may be of any format."""
    given = messages if isinstance(messages, list) else []
    contents = [each.get("content") for each in given if _role(each) == _CALL]
    return bool(contents) and _decoded(contents[0]) is not None


def without_call_roles(messages: Sequence[object], path: str) -> list[dict[str, Any]]:  # Any: JSON values
    """The messages in the shape of the OpenAI API.

    A `tool_call` is part of the answer before it, as are others that follow; a `tool_response` is a result.

    Args:
        messages: JSON values, of which some are as above.
        path: JSON path of their list.

    Raises:
        ConversationError: One is no message, or no call where its role says so.
    """
    found: list[dict[str, Any]] = []
    for i, each in enumerate(messages):
        place = f"{path}[{i}]"
        message: Any = each
        if _role(each) == _CALL:
            answer = found.pop() if found and _role(found[-1]) == "assistant" else _EMPTY
            calls = [*(answer.get("tool_calls") or ()), _call(message.get("content"), f"{place}.content")]
            message = {**answer, "tool_calls": calls}
        elif _role(each) == _RESULT:
            content = message.get("content")
            text = json.dumps(content, ensure_ascii=False) if isinstance(content, dict) else content
            message = {**message, "role": "tool", "content": text}
        check_message(message, place)
        found.append(message)
    return found


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _decoded(content: object) -> Mapping[str, Any] | None:
    """The call in a content, None without any."""
    if isinstance(content, str):
        try:
            content = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return None
    return content if isinstance(content, dict) and isinstance(content.get("name"), str) else None


def _call(content: object, path: str) -> dict[str, Any]:
    call = _decoded(content)
    if call is None:
        found = "text that is none" if isinstance(content, str) else kind_of(content)
        raise ConversationError(f"is {found}; expected {_EXPECTED}.", path=path)
    return tool_call(call["name"], call.get("arguments", {}))
