"""`sharegpt`: conversations of `from` and `value`, as FastChat, Axolotl and LLaMA-Factory read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation, check_message
from tokscore.rendering.conversations.media import check_no_media
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, linear
from tokscore.rendering.conversations.values import kind_of, shown
from tokscore.rendering.reading.fields.messages import decoded, tool_call, tools_or_text
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_CALL = "function_call"
_ASSISTANT = "assistant"
_CHOICES = ("chosen", "rejected")
_ROLES: Mapping[str, str] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "model": "assistant",
    _CALL: "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
}
_METADATA = ("source", "dataset", "model", "category", "language", "score", "weight", "kto_tag", "metadata")
_TOOL_CALL = '{"name", "arguments"} or a list of them, as JSON text'


def _matches(record: Mapping[str, Any]) -> bool:
    turns = record.get("conversations")
    return isinstance(turns, list) and all(isinstance(turn, dict) and "from" in turn for turn in turns[:1])


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation | Trace:
    check_no_media(record)
    if any(record.get(key) is not None for key in _CHOICES):
        return _preference(record)
    return Conversation(
        messages=_messages(record),
        tools=tools_or_text(record.get("tools"), "$.tools"),
        metadata=metadata_text(record, _METADATA),
    )


def _preference(record: Mapping[str, Any]) -> Trace:
    nodes = linear([Node(NO_PARENT, (message,)) for message in _messages(record)])
    n_prompt = len(nodes)
    for key in _CHOICES:
        turn = need(record, key, dict, "$", "an object with from and value, as chosen and rejected both are")
        message = _message(turn, f"$.{key}")
        if message["role"] != _ASSISTANT:
            raise ConversationError(
                f"is {shown(turn['from'])}; expected a speaker who is the assistant.", path=f"$.{key}.from"
            )
        nodes.append(Node(n_prompt - 1, (message,), is_sampled=True))
    return Trace(
        nodes,
        tools_or_text(record.get("tools"), "$.tools"),
        metadata=metadata_text(record, _METADATA, branches=list(_CHOICES)),
    )


def _messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = need(record, "conversations", list, "$", "a list of objects with from and value")
    if not turns:
        raise ConversationError(
            "is empty; expected a list with at least one message.", path="$.conversations"
        )
    messages = [_message(turn, f"$.conversations[{i}]") for i, turn in enumerate(turns)]
    system = get(record, "system", str, "$", "text")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    elif system and messages[0]["content"] != system:
        raise ConversationError(
            f"is {shown(system)}, and the first message is another system text; expected one of them.",
            path="$.system",
        )
    return messages


def _message(turn: object, path: str) -> dict[str, Any]:
    found = object_at(turn, path)
    speaker = need(found, "from", str, path, f"one of {', '.join(_ROLES)}")
    if speaker not in _ROLES:
        raise ConversationError(
            f"is {shown(speaker)}; expected one of {', '.join(_ROLES)}.", path=f"{path}.from"
        )
    value = need(found, "value", str, path, "text")
    if speaker != _CALL:
        return {"role": _ROLES[speaker], "content": value}
    message = {"role": "assistant", "content": "", "tool_calls": _calls(value, f"{path}.value")}
    check_message(message, path)
    return message


def _calls(value: str, path: str) -> list[dict[str, Any]]:
    given = decoded(value, path, _TOOL_CALL)
    calls = given if isinstance(given, list) else [given]
    if not calls:
        raise ConversationError(f"is an empty list; expected {_TOOL_CALL}.", path=path)
    return [_call(call, path) for call in calls]


def _call(call: object, path: str) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        found = "an object without a name" if isinstance(call, dict) else kind_of(call)
        raise ConversationError(f"holds {found}; expected {_TOOL_CALL}.", path=path)
    return tool_call(call["name"], call.get("arguments", {}))


FORMAT = Format(
    name="sharegpt",
    fields="conversations[from, value], system, tools; human and user are the user, gpt, chatgpt, assistant, "
    "bot and model the assistant, tool, observation and function a tool, function_call holds tool calls; "
    "chosen[from, value] and rejected[from, value] behind them are two branches",
    has_logprobs=False,
    has_branches=True,
    example='{"id": "a", "conversations": [{"from": "human", "value": "Hi"}, '
    '{"from": "gpt", "value": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
)
