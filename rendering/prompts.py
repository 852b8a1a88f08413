"""What a chat template prints before an answer, found out by asking it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.rendering.attribution import run_table
from tokscore.rendering.errors import ConversationError
from tokscore.rendering.rendered import NO_MESSAGE
from tokscore.rendering.templates import RenderedText, prepare_messages, render_template
from tokscore.rendering.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_USER = {"role": "user", "content": "hi"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "a"}}},
    },
}


class GenerationPrompt(NamedTuple):
    """What a template prints before an answer.

    Attributes:
        token_ids: int32.
        text: The same as characters.
    """

    token_ids: NDArray[np.int32]
    text: str


class Prompts(NamedTuple):
    """How a template opens an answer.

    Attributes:
        after: What it prints behind a user, a tool and an assistant message, as far as it takes the probes.
        has_header: An answer is preceded by template text; without it, it opens with its own text.
    """

    after: list[GenerationPrompt]
    has_header: bool


def find_prompts(
    tokenizer: ChatTokenizer,
    template: str,
    variables: Mapping[str, Any],  # Any: template kwargs
    *,
    has_tools: bool,
) -> Prompts:
    """Ask a template for the opener of an answer behind a user, a tool and an assistant message.

    Args:
        tokenizer: Makes the ids.
        template: Jinja source.
        variables: Special tokens and template kwargs, as in the conversations.
        has_tools: The conversations come with tool definitions.
    """
    tools = [_TOOL] if has_tools else None
    after_answer = _probe(template, [[_USER, {"role": "assistant", "content": "yo"}]], None, variables)
    probes = (
        _probe(template, [[_USER]], None, variables),
        _probe(template, _tool_probes(), tools, variables),
        after_answer,
    )
    prompts = [_prompt(tokenizer, rendered) for rendered in probes if rendered is not None]
    has_header = any(len(prompt.token_ids) for prompt in prompts) or not _opens_directly(after_answer)
    return Prompts(prompts, has_header)


def _probe(
    template: str,
    tries: list[list[dict[str, Any]]],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
) -> RenderedText | None:
    """The first of the conversations that the template takes."""
    for messages in (*tries, *map(_with_parts, tries)):
        try:
            rendered = render_template(
                template,
                prepare_messages(messages),
                tools=tools,
                add_generation_prompt=True,
                variables=variables,
            )
        except ConversationError:
            continue
        if rendered.text:
            return rendered
    return None


def _prompt(tokenizer: ChatTokenizer, rendered: RenderedText) -> GenerationPrompt:
    """The end of the text that no message owns."""
    encoding = tokenizer.encode(rendered.text)
    runs = run_table(rendered.runs)
    owned = np.flatnonzero(runs.writer != NO_MESSAGE)
    begin = int(runs.stops[owned[-1]]) if len(owned) else 0
    chosen = (encoding.starts >= begin) & (encoding.stops > encoding.starts)
    return GenerationPrompt(encoding.token_ids[chosen], rendered.text[begin:])


def _opens_directly(rendered: RenderedText | None) -> bool:
    """Whether the answer in a probe opens with its own text."""
    if rendered is None:
        return False
    runs = run_table(rendered.runs)
    written, own = np.flatnonzero(runs.writer == 1), np.flatnonzero(runs.input_of == 1)
    return bool(len(own)) and not rendered.text[runs.starts[written[0]] : runs.starts[own[0]]].strip()


def _tool_probes() -> list[list[dict[str, Any]]]:
    call = {"id": "call_00001", "type": "function"}
    return [
        [
            _USER,
            {
                "role": "assistant",
                "content": content,
                "tool_calls": [{**call, "function": {"name": "f", "arguments": arguments}}],
            },
            {"role": "tool", "name": "f", "tool_call_id": "call_00001", "content": "res"},
        ]
        for arguments in ({"a": 1}, '{"a": 1}')
        for content in ("", None, "ok")
    ]


def _with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]
