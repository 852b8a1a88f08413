"""`openai`: requests and logs of the Chat Completions API, and most training sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation, read_conversation
from tokscore.rendering.reading.fields.answered import check_answered
from tokscore.rendering.reading.fields.call_roles import has_call_roles, without_call_roles
from tokscore.rendering.reading.fields.messages import decoded, openai_tools, tools_or_text
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
    if not record.get("tools") and _are_functions(record.get("functions")):
        record = {**record, "tools": openai_tools(record["functions"], "$.functions")}
    messages = record.get("messages")
    if messages is not None and has_call_roles(messages):
        tools = openai_tools(record.get("tools"), "$.tools")
        record = {**record, "messages": without_call_roles(messages, "$.messages"), "tools": tools}
    conversation = read_conversation(record)
    check_answered(record, conversation.messages)
    return conversation


def _are_functions(value: object) -> bool:
    """Whether they are tool definitions under the API's first name of them."""
    if isinstance(value, str):
        return value.lstrip().startswith("[")
    given = value if isinstance(value, list) else []
    return bool(given) and all(
        isinstance(each, dict) and ("name" in each or "function" in each) for each in given
    )


FORMAT = Format(
    name="openai",
    fields="messages[role, content, reasoning_content|reasoning, tool_calls, tool_call_id, name], "
    "tools, both also as JSON text, functions in their place, chat_template_kwargs, id, uuid, metadata; of "
    "ms-swift also messages with the roles tool_call, which are calls of the answer before them, and "
    "tool_response",
    has_logprobs=False,
    has_branches=False,
    example='{"id": "a", "messages": [{"role": "user", "content": "Hi"}, '
    '{"role": "assistant", "content": "Hello!"}]}',
    matches=_matches,
    parse=_parse,
    id_keys=(*ID_KEYS, "uuid"),
)
