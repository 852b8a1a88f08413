"""`tau-bench`: results of tau-bench, one trajectory of messages for each trial of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.rendering.conversations.conversation import Conversation, check_messages
from tokscore.rendering.reading.fields.values import metadata_text, need
from tokscore.rendering.reading.formats.format import OPEN_KEYS, Format, Place

_METADATA = ("task_id", "trial", "reward", "info")


def _matches(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("traj"), list) and "task_id" in record


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:
    messages = need(record, "traj", list, "$", "a list of messages")
    return Conversation(check_messages(messages, "$.traj"), metadata=metadata_text(record, _METADATA))


FORMAT = Format(
    name="tau-bench",
    fields="traj[role, content, tool_calls, tool_call_id, name], task_id, trial, reward, info. Tools are not "
    "recorded: give them with `tools`",
    has_logprobs=False,
    has_branches=False,
    example='{"task_id": 3, "trial": 0, "reward": 1.0, "info": {}, "traj": [{"role": "user", "content": '
    '"Hi"}, {"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
    is_served=True,
    id_keys=(("task_id", "trial"), "task_id"),
    open_keys=OPEN_KEYS | {"kwargs"},
)
