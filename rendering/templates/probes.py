"""Small conversations that a chat template is asked with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.templates.render import RenderedText, prepare_messages, render_template

Messages = list[dict[str, Any]]  # Any: JSON values

USER: dict[str, Any] = {"role": "user", "content": "hi"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "yo"}
LATER = [USER, ANSWER, {**USER, "content": "so"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "a"}}},
    },
}
_CALL = "call00001"  # nine letters and digits, as Mistral's templates want


def tool_rounds() -> Iterator[Messages]:
    """A call and its result, in the forms that templates take."""
    for arguments in ({"a": 1}, '{"a": 1}'):
        for content in ("", None, "ok"):
            call = {"id": _CALL, "type": "function", "function": {"name": "f", "arguments": arguments}}
            yield [
                USER,
                {"role": "assistant", "content": content, "tool_calls": [call]},
                {"role": "tool", "name": "f", "tool_call_id": _CALL, "content": "res"},
            ]


def with_parts(messages: Messages) -> Messages:
    """The same with text as a list of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]


def probe(
    template: str,
    variables: Mapping[str, Any],
    messages: Messages,
    *,
    tools: Messages | None = None,
    add_generation_prompt: bool = False,
) -> RenderedText | None:
    """The messages as a template prints them, None where it refuses them."""
    try:
        return render_template(
            template,
            prepare_messages(messages),
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
    except ConversationError:
        return None
