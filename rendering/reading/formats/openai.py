"""`openai`: requests and logs of the Chat Completions API, and most training sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.rendering.conversations.conversation import Conversation, read_conversation
from tokscore.rendering.reading.formats.format import Format, Place
from tokscore.rendering.reading.formats.messages import tools_or_text


def _matches(record: Mapping[str, Any]) -> bool:  # Any: JSON values
    return "messages" in record


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:  # Any: JSON values
    if isinstance(record.get("tools"), str):  # tables have no room for objects of any shape
        record = {**record, "tools": tools_or_text(record["tools"], "$.tools")}
    return read_conversation(record)


FORMAT = Format(
    name="openai",
    fields="messages[role, content, reasoning_content|reasoning, tool_calls, tool_call_id, name], "
    "tools (also as JSON text), "
    "chat_template_kwargs, id, metadata",
    has_logprobs=False,
    has_branches=False,
    example='{"id": "a", "messages": [{"role": "user", "content": "Hi"}, '
    '{"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
)
