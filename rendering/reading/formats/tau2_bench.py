"""`tau2-bench`: simulations of tau2-bench, as the agent saw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, Usage, linear
from tokscore.rendering.reading.fields.messages import openai_message, thinking_text
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

NO_SYSTEM_STATUS = "system_not_recorded"
_ASSISTANT, _USER = "assistant", "user"
_METADATA = ("task_id", "trial", "seed", "termination_reason", "reward_info")
# Of messages that a model made; the agent's greeting is a fixed text.
_GENERATED = ("usage", "raw_data", "generation_time_seconds")


def _matches(record: Mapping[str, Any]) -> bool:
    return (
        isinstance(record.get("messages"), list)
        and "task_id" in record
        and any(key in record for key in ("termination_reason", "reward_info"))
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    given = need(record, "messages", list, "$", "a list of messages")
    messages = [object_at(each, f"$.messages[{i}]") for i, each in enumerate(given)]
    says_generated = any(_is_generated(each) for each in messages if each.get("role") == _ASSISTANT)
    nodes: list[Node] = []
    for i, each in enumerate(messages):
        if _is_of_user_tools(each):
            continue
        path = f"$.messages[{i}]"
        message = _message(each, path)
        is_sampled = message["role"] == _ASSISTANT and (_is_generated(each) or not says_generated)
        usage = _usage(each, path) if is_sampled else None
        nodes.append(Node(NO_PARENT, (message,), is_sampled, usage=usage))
    if not nodes:
        raise ConversationError("is empty; expected a list with at least one message.", path="$.messages")
    has_system = any(node.messages[0]["role"] == "system" for node in nodes)
    return Trace(
        linear(nodes),
        metadata=metadata_text(record, _METADATA),
        status=None if has_system else NO_SYSTEM_STATUS,
    )


def _is_generated(message: Mapping[str, Any]) -> bool:
    return any(message.get(key) is not None for key in _GENERATED)


def _is_of_user_tools(message: Mapping[str, Any]) -> bool:
    """Whether it is a call of the simulated user, or its result, which the agent never sees."""
    if message.get("role") == _USER:
        return bool(message.get("tool_calls")) and not message.get("content")
    return message.get("role") == "tool" and message.get("requestor") == _USER


def _message(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": given.get("role"), "content": given.get("content")}
    if found["role"] == "tool":
        found["tool_call_id"] = given.get("id")
    elif found["role"] == _ASSISTANT:
        if given.get("tool_calls"):
            found["tool_calls"] = given["tool_calls"]
        reasoning = _reasoning(given, path)
        if reasoning:
            found["reasoning_content"] = reasoning
    return openai_message(found, path)


def _reasoning(given: Mapping[str, Any], path: str) -> str | None:
    raw = given.get("raw_data")
    if not isinstance(raw, dict):
        return None
    path = f"{path}.raw_data"
    for holder, place in ((raw, path), (raw.get("message"), f"{path}.message")):
        if not isinstance(holder, dict):
            continue
        blocks: Sequence[object] | None = get(holder, "thinking_blocks", list, place, "a list of blocks")
        if blocks:
            return thinking_text(blocks, f"{place}.thinking_blocks")
        text = get(holder, "reasoning_content", str, place, "text")
        if text:
            return text
    return None


def _usage(given: Mapping[str, Any], path: str) -> Usage | None:
    usage = get(given, "usage", dict, path, "an object")
    return None if usage is None else usage_of(usage, f"{path}.usage")


FORMAT = Format(
    name="tau2-bench",
    fields="simulations[id, task_id, trial, seed, reward_info, termination_reason, messages[role, content, "
    "tool_calls[id, name, arguments], id, requestor, usage, raw_data]]. Tool calls of the simulated user and "
    "their results are left out, since the agent never sees them; a greeting that no model made is not "
    "sampled. The agent's system prompt is not recorded, which the status says; give tools with `tools`",
    has_logprobs=False,
    has_branches=False,
    example='{"id": "a", "task_id": "3", "trial": 0, "reward_info": {"reward": 1.0}, "messages": [{"role": '
    '"user", "content": "Hi"}, {"role": "assistant", "content": "Hello!", "usage": {"prompt_tokens": 9, '
    '"completion_tokens": 2}}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    records_key="simulations",
)
