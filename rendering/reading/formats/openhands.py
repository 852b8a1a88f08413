"""`openhands`: published trajectories of coding agents, such as those of SWE-rebench with OpenHands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation, check_messages
from tokscore.rendering.conversations.values import shown
from tokscore.rendering.reading.fields.messages import decoded, openai_message, tools_or_text
from tokscore.rendering.reading.fields.values import metadata_text, need, object_at
from tokscore.rendering.reading.formats.format import Format, Place

_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name")
_METADATA = (
    "instance_id",
    "trajectory_id",
    "repo",
    "model",
    "model_name",
    "exit_status",
    "resolved",
    "target",
)
# Of nebius/SWE-agent-trajectories.
_AI = "ai"


def _matches(record: Mapping[str, Any]) -> bool:
    steps = record.get("trajectory")
    if isinstance(steps, str):
        return steps.lstrip().startswith("[") and '"role"' in steps
    return (
        isinstance(steps, list)
        and bool(steps)
        and "history" not in record
        and all(isinstance(step, dict) and "role" in step for step in steps)
    )


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:
    steps = need(record, "trajectory", (list, str), "$", "a list of messages, or the same as JSON text")
    messages = decoded(steps, "$.trajectory", "a list of messages as JSON text")
    if not isinstance(messages, list):
        messages = check_messages(messages, "$.trajectory")
    return Conversation(
        check_messages(_messages(messages), "$.trajectory"),
        tools_or_text(record.get("tools"), "$.tools"),
        metadata=metadata_text(record, _METADATA),
    )


def _messages(steps: Sequence[object]) -> list[dict[str, Any]]:
    return [
        _message(object_at(step, f"$.trajectory[{i}]"), f"$.trajectory[{i}]") for i, step in enumerate(steps)
    ]


def _message(step: Mapping[str, Any], path: str) -> dict[str, Any]:
    if "text" in step or "system_prompt" in step:
        return _text_message(step, path)
    found = {"role": step.get("role")} | {key: step[key] for key in _FIELDS if step.get(key) is not None}
    found.setdefault("content", None)
    return openai_message(found, path)


def _text_message(step: Mapping[str, Any], path: str) -> dict[str, Any]:
    role = need(step, "role", str, path, "system, user or ai")
    if role not in ("system", "user", _AI):
        raise ConversationError(f"is {shown(role)}; expected system, user or ai.", path=f"{path}.role")
    key = "system_prompt" if role == "system" and step.get("system_prompt") else "text"
    text = need(step, key, str, path, "text")
    return {"role": "assistant" if role == _AI else role, "content": text}


FORMAT = Format(
    name="openhands",
    fields="trajectory[role, content, tool_calls, tool_call_id, name] and tools, each also as JSON text, or "
    "trajectory[role, text, system_prompt] with the role ai; instance_id, trajectory_id, exit_status, "
    "resolved",
    has_logprobs=False,
    has_branches=False,
    example='{"trajectory_id": "t1", "instance_id": "a__b-1", "resolved": 1, "trajectory": [{"role": "user", '
    '"content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    id_keys=("trajectory_id", "id", "instance_id"),
)
