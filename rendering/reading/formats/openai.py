"""`openai`: requests and logs of the Chat Completions API, and most training sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation, read_conversation
from tokscore.rendering.reading.fields.messages import decoded, tools_or_text
from tokscore.rendering.reading.formats.format import ID_KEYS, Format, Place

_PAIR = ("input", "output")


def _matches(record: Mapping[str, Any]) -> bool:  # Any: JSON values
    return "messages" in record


def _parse(record: Mapping[str, Any], _place: Place) -> Conversation:  # Any: JSON values
    # Tables have no room for objects of any shape.
    if isinstance(record.get("tools"), str):
        record = {**record, "tools": tools_or_text(record["tools"], "$.tools")}
    if isinstance(record.get("messages"), str):
        messages = decoded(record["messages"], "$.messages", "a list of messages as JSON text")
        record = {**record, "messages": messages}
    if "messages" not in record and all(isinstance(record.get(key), str) for key in _PAIR):
        raise ConversationError(
            f"is missing; expected a list of messages, found the texts {' and '.join(_PAIR)}.",
            path="$.messages",
            hint="`input_format='alpaca'` reads them as a question and its answer, "
            "`input_format='text-dump'` as text that a template has printed.",
        )
    return read_conversation(record)


FORMAT = Format(
    name="openai",
    fields="messages[role, content, reasoning_content|reasoning, tool_calls, tool_call_id, name], "
    "tools, both also as JSON text, chat_template_kwargs, id, uuid, metadata",
    has_logprobs=False,
    has_branches=False,
    example='{"id": "a", "messages": [{"role": "user", "content": "Hi"}, '
    '{"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
    id_keys=(*ID_KEYS, "uuid"),
)
