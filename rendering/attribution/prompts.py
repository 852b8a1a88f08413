"""How a chat template opens an answer, found out by asking it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import run_table
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.templates.render import RenderedText, prepare_messages, render_template

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
    """The text that a template prints before an answer.

    Attributes:
        token_ids: Its tokens.
        text: The same as characters.
    """

    token_ids: tuple[int, ...]
    text: str


class Prompts(NamedTuple):
    """How a template opens an answer.

    Attributes:
        after: What it prints behind a user, a tool and an assistant message, as far as it takes the probes;
            what is equal only once.
        has_header: An answer is preceded by template text; without it, it opens with its own text.
    """

    after: tuple[GenerationPrompt, ...]
    has_header: bool


def find_prompts(
    tokenizer: ChatTokenizer, template: str, variables: Mapping[str, Any], *, has_tools: bool
) -> Prompts:
    """The text that `template` prints before an answer.

    Args:
        tokenizer: Turns it into ids.
        template: Jinja source.
        variables: Special tokens and template kwargs, as in the conversations.
        has_tools: Ask with a tool definition where a tool answers.
    """
    tools = [_TOOL] if has_tools else None
    after_answer = _probe(template, variables, [[_USER, {"role": "assistant", "content": "yo"}]], None)
    probes = (
        _probe(template, variables, [[_USER]], None),
        _probe(template, variables, _tool_probes(), tools),
        after_answer,
    )
    found = tuple(dict.fromkeys(_prompt(tokenizer, probe) for probe in probes if probe is not None))
    has_header = any(prompt.token_ids for prompt in found) or not _opens_directly(after_answer)
    return Prompts(found, has_header)


def _probe(
    template: str,
    variables: Mapping[str, Any],
    tries: list[list[dict[str, Any]]],
    tools: list[dict[str, Any]] | None,
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
    return GenerationPrompt(tuple(encoding.token_ids[chosen].tolist()), rendered.text[begin:])


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
