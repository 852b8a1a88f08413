"""`swe-agent`: trajectories of SWE-agent and mini-swe-agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_message
from tokscore.rendering.conversations.trace import NO_PARENT, Node, Trace, Usage
from tokscore.rendering.reading.fields.messages import thinking_text
from tokscore.rendering.reading.fields.usage import usage_of
from tokscore.rendering.reading.fields.values import get, metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_MINI = "mini-swe-agent"
_MESSAGE_FIELDS = (
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "tool_call_id",
    "name",
)
# How mini-swe-agent notes that it stopped; the model never sees it.
_EXIT = "exit"
_METADATA = ("instance_id", "environment", "trajectory_format")


def _matches(record: Mapping[str, Any]) -> bool:
    if isinstance(record.get("history"), list):
        return isinstance(record.get("trajectory"), list)
    run = record.get("info")
    return isinstance(record.get("messages"), list) and (
        str(record.get("trajectory_format")).startswith(_MINI)
        or (isinstance(run, dict) and "exit_status" in run)
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Trace:
    is_mini = record.get("history") is None and "messages" in record
    key = "messages" if is_mini else "history"
    items = [
        object_at(item, f"$.{key}[{i}]")
        for i, item in enumerate(need(record, key, list, "$", "a list of messages"))
    ]
    nodes: list[Node] = []
    last: dict[str | None, int] = {}
    for i, item in enumerate(items):
        if is_mini and item.get("role") == _EXIT:
            continue
        path = f"$.{key}[{i}]"
        message = _message(item, path)
        is_sampled = message["role"] == "assistant" and not item.get("is_demo")
        agent = None if is_mini else get(item, "agent", str, path, "a name")
        usage = _usage(item, path) if is_sampled else None
        nodes.append(Node(last.get(agent, NO_PARENT), (message,), is_sampled, usage=usage))
        last[agent] = len(nodes) - 1
    if not nodes:
        raise ConversationError("is empty; expected a list with at least one message.", path=f"$.{key}")
    run = get(record, "info", dict, "$", "an object") or {}
    return Trace(
        nodes,
        # The settings of the agent fill pages.
        metadata=metadata_text(
            record,
            _METADATA,
            info={name: value for name, value in run.items() if name != "config"} or None,
            agents=list(last) if len(last) > 1 else None,
        ),
    )


def _message(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    message = {key: item[key] for key in _MESSAGE_FIELDS if item.get(key) is not None}
    ids = get(item, "tool_call_ids", list, path, "a list of ids")
    if ids and message.get("role") == "tool" and "tool_call_id" not in message:
        if len(ids) > 1:
            raise ConversationError(
                f"has {len(ids)} ids; expected one a tool result.", path=f"{path}.tool_call_ids"
            )
        message["tool_call_id"] = ids[0]
    blocks = get(item, "thinking_blocks", list, path, "a list of blocks")
    if blocks and "reasoning_content" not in message:
        message["reasoning_content"] = thinking_text(blocks, f"{path}.thinking_blocks")
    check_message(message, path)
    return message


def _usage(item: Mapping[str, Any], path: str) -> Usage | None:
    for key in ("extra", "response", "usage"):
        value = item.get(key)
        if not isinstance(value, dict):
            return None
        item, path = value, f"{path}.{key}"
    return usage_of(item, path)


FORMAT = Format(
    name="swe-agent",
    fields="history[role, content, tool_calls, tool_call_ids, thinking_blocks, agent, is_demo], trajectory, "
    "environment, info of SWE-agent, each agent a branch of its own; messages[role, content, tool_calls, "
    "tool_call_id, extra.response.usage], info, trajectory_format, instance_id of mini-swe-agent",
    has_logprobs=False,
    has_branches=True,
    example='{"trajectory_format": "mini-swe-agent-1.1", "info": {"exit_status": "Submitted"}, "messages": '
    '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
)
