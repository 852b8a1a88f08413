"""Chat templates rendered once, whole, with the origin of every character."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2

from tokscore.rendering.environment import TrackingEnvironment
from tokscore.rendering.errors import ConversationError
from tokscore.rendering.origins import Runs, merge_runs
from tokscore.rendering.provenance import literal, plain, track, wrap

_TEMPLATE_HINT = (
    "Not every template takes tools, null content or all roles: choose another with --template, "
    "or drop such conversations with --on-error skip."
)
_OWN_TYPES = re.compile(r"(?:tokscore\.rendering\.provenance\.)?Tracked(Str|Dict|List|Int|Float|Bool)\b")


class RenderedText(NamedTuple):
    """What a template printed.

    Attributes:
        text: The whole conversation.
        runs: Origins, covering `text` exactly.
    """

    text: str
    runs: Runs


_ENVIRONMENT = TrackingEnvironment()


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(template)


def check_template(template: str) -> None:
    """Compile a template.

    Raises:
        jinja2.TemplateSyntaxError: It does not parse.
    """
    _compiled(template)


@lru_cache(maxsize=64)
def has_generation_tags(template: str) -> bool:
    """Whether a template marks what a model generated; comments and raw text do not count."""
    tokens = [token for token in _ENVIRONMENT.lex(template) if token[1] != "whitespace"]
    return any(
        before[1] == "block_begin" and token[1:] == ("name", "generation")
        for before, token in pairwise(tokens)
    )


def uses_date(template: str) -> bool:
    """Whether a template can print today's date."""
    return "strftime_now" in template


def _plain_names(text: str) -> str:
    """An error's text with the names of Python's own types for ours."""
    return _OWN_TYPES.sub(lambda match: match[1].lower(), text)


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON values
    """The messages as the installed transformers shows them to a template.

    It drops keys whose value is None and copies the reasoning under the names that templates read.
    """
    from transformers.utils import chat_template_utils

    prepared: Any = list(messages)
    for name in ("_normalize_chat_messages", "_alias_reasoning_fields"):
        step = getattr(chat_template_utils, name, None)
        if step is not None:
            prepared = step(prepared)
    return [dict(message) for message in prepared]


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    variables: Mapping[str, Any] | None = None,
    now: dt.datetime | None = None,
) -> RenderedText:
    """Text of a conversation with the origin of every character.

    Args:
        template: Jinja source of a chat template.
        messages: As `prepare_messages` returns them.
        tools: Tool definitions, JSON Schema objects.
        documents: Documents for templates that take them.
        add_generation_prompt: Ask for the opener of the next assistant message.
        variables: Special tokens and template kwargs.
        now: What templates that print the date take it to be; the clock's time by default.

    Raises:
        ConversationError: The template refuses the conversation.
        RecursionError: The data is nested too deeply.
    """
    try:
        context = {
            "messages": wrap(messages, ("messages",)),
            "tools": wrap(tools, ("tools",)),
            "documents": wrap(documents, ("documents",)),
            "add_generation_prompt": add_generation_prompt,
        }
        for name, value in (variables or {}).items():
            context[name] = wrap(value, ("template", name))
        if now is not None:
            context["strftime_now"] = lambda pattern: literal(now.strftime(plain(pattern)))
        text = track(_compiled(template).render(context))
    except jinja2.exceptions.SecurityError as error:
        raise ConversationError(f"the chat template does something unsafe: {error.message}") from error
    except jinja2.exceptions.TemplateError as error:
        reason = _plain_names(error.message or "")
        raise ConversationError(
            f"the chat template refuses the conversation: {reason}", hint=_TEMPLATE_HINT
        ) from error
    except RecursionError:
        raise
    except Exception as error:  # A template can fail in any way.
        reason = f"{type(error).__name__}: {_plain_names(str(error))}"
        raise ConversationError(
            f"the chat template fails on the conversation: {reason}", hint=_TEMPLATE_HINT
        ) from error
    return RenderedText(plain(text), merge_runs(text._runs))
