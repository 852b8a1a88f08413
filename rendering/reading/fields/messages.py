"""Messages, tool calls and tools of other shapes in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_message, check_objects
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.values import get, need, object_at


def decoded(value: object, path: str, expected: str) -> object:
    """The value, decoded where it is JSON text.

    Args:
        value: A JSON value.
        path: Its JSON path.
        expected: In words, what the text should hold.

    Raises:
        ConversationError: It is text, but no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConversationError(f"is not JSON: {error}; expected {expected}.", path=path) from error


def tools_or_text(value: object, path: str) -> list[dict[str, Any]] | None:
    """Tool definitions as they are, None without any.

    Args:
        value: A list of them, or the same as JSON text.
        path: Its JSON path.

    Raises:
        ConversationError: It is something else.
    """
    if isinstance(value, str) and not value.strip():
        return None
    return check_objects(decoded(value, path, "a list of tools as JSON text") or None, path)


def openai_tools(tools: object, path: str) -> list[dict[str, Any]] | None:
    """Tool definitions in the shape of the OpenAI API, None without any.

    Args:
        tools: A JSON value, or JSON text. Definitions may be flat, `{name, description, parameters}`, with
            the parameters as `input_schema` in Anthropic's.
        path: Its JSON path.

    Raises:
        ConversationError: It is no list of objects.
    """
    return [_tool(tool) for tool in tools_or_text(tools, path) or ()] or None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or "name" not in tool:
        return tool
    function = {key: value for key, value in tool.items() if key not in ("type", "input_schema")}
    if "input_schema" in tool:
        function["parameters"] = tool["input_schema"]
    return {"type": "function", "function": function}


def openai_message(message: object, path: str, *, allow_media: bool = False) -> dict[str, Any]:
    """A message with its tool calls in the shape of the OpenAI API.

    Args:
        message: A JSON value. Its calls may be flat, `{id, name, arguments}`, or JSON text.
        path: Its JSON path.
        allow_media: Take image and audio parts, of which the ids are recorded.

    Raises:
        ConversationError: It is no message.
    """
    found = dict(object_at(message, path))
    calls = get(found, "tool_calls", list, path, "a list of tool calls")
    if calls is not None:
        found["tool_calls"] = [_call(each, f"{path}.tool_calls[{i}]") for i, each in enumerate(calls)]
    check_message(found, path, allow_media=allow_media)
    return found


def _call(call: object, path: str) -> dict[str, Any]:
    found = object_at(decoded(call, path, "a tool call"), path)
    if isinstance(found.get("function"), dict) or "name" not in found:
        return dict(found)
    return tool_call(found["name"], found.get("arguments", {}), found.get("id"))


def tool_call(name: object, arguments: object, identifier: object = None) -> dict[str, Any]:
    """A tool call of a message.

    Args:
        name: Of the tool.
        arguments: An object, or JSON text.
        identifier: Of the call, None without.
    """
    found = {} if identifier is None else {"id": identifier}
    return {**found, "type": "function", "function": {"name": name, "arguments": arguments}}


def joined_text(parts: object, path: str, kinds: Sequence[str] = ("text",)) -> str | None:
    """The text of a content, None without any.

    Args:
        parts: Text, null, or a list of parts, `{type, text}`.
        path: Its JSON path.
        kinds: Types of the parts that are text.

    Raises:
        ConversationError: Some part is of another type.
    """
    if parts is None or isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        raise ConversationError(f"is {kind_of(parts)}; expected text or a list of parts.", path=path)
    return "".join(_part_text(part, f"{path}[{i}]", kinds) for i, part in enumerate(parts))


def _part_text(part: object, path: str, kinds: Sequence[str]) -> str:
    found = object_at(part, path)
    kind = need(found, "type", str, path, f"the type of a part, such as {kinds[0]}")
    if kind not in kinds:
        raise ConversationError(
            f'is "{kind}"; expected {" or ".join(kinds)}: tokscore renders text only.', path=f"{path}.type"
        )
    return need(found, "text", str, path, "text")


def answer_message(
    content: str | None, reasoning: str | None, calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:  # Any: JSON values
    """A message of the assistant.

    Args:
        content: Its text, None without.
        reasoning: What the model thought before, None without.
        calls: Its tool calls, possibly none.
    """
    found: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        found["reasoning_content"] = reasoning
    if calls:
        found["tool_calls"] = list(calls)
    return found


def thinking_text(blocks: Sequence[object], path: str) -> str:
    """The text of thinking blocks, empty where all are redacted.

    Args:
        blocks: `{type, thinking}` each.
        path: JSON path of their list.

    Raises:
        ConversationError: Some block is no object, or its text no text.
    """
    found = [object_at(block, f"{path}[{i}]") for i, block in enumerate(blocks)]
    texts = [get(each, "thinking", str, f"{path}[{i}]", "text") for i, each in enumerate(found)]
    return "".join(text for text in texts if text)
