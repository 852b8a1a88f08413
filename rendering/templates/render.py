"""Chat templates rendered once, whole, with the origin of every character."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2

from tokscore.dataset.errors import ConversationError, InputError, foreign, or_skip
from tokscore.rendering.templates.compiler import ConstantCheck
from tokscore.rendering.templates.environment import TrackingEnvironment
from tokscore.rendering.templates.functions import formatted_time
from tokscore.rendering.templates.limits import DEFAULT_LIMITS, TemplateLimitError, TemplateLimits, limited
from tokscore.rendering.templates.origins import Runs, merge_runs
from tokscore.rendering.templates.places import place_of
from tokscore.rendering.templates.strings import plain, track
from tokscore.rendering.templates.values import with_python_types, wrap

# Constants are folded when a template is compiled.
_CONSTANT_LIMITS = TemplateLimits(cpu_s=2.0, n_characters=2**22)
_USUAL_ROLES = ("system", "user", "assistant", "tool")
# What templates raise without meaning to.
TEMPLATE_FAILURES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    AssertionError,
)
_TEMPLATE_HINT = or_skip(
    "Not every template takes tools, null content or all roles: choose another with `template`",
    "drop such conversations",
)


class RefusedError(ConversationError):
    """The template does not take the conversation."""


class RenderedText(NamedTuple):
    """The text that a template printed.

    Attributes:
        text: The whole conversation.
        runs: Origins, covering `text` exactly.
    """

    text: str
    runs: Runs


_ENVIRONMENT = TrackingEnvironment()


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    compiled = _ENVIRONMENT.from_string(template)
    compiled.globals = dict(compiled.globals)  # each rendering copies them, and a chain of dicts takes long
    return compiled


def check_template(template: str) -> None:
    """Compile a template.

    Raises:
        InputError: It does not parse, or holds constants that are too large to write out.
    """
    try:
        with limited(_CONSTANT_LIMITS) as usage:
            usage.begin()
            ConstantCheck(_ENVIRONMENT).visit(_ENVIRONMENT.parse(template))
        _compiled(template)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(
            f"the chat template does not parse: line {error.lineno}: {foreign(error.message)}"
        ) from error
    except TemplateLimitError as error:
        raise InputError(f"the chat template is refused: one of its constants {error.reason}") from error
    except (RecursionError, SyntaxError, MemoryError) as error:
        raise InputError("the chat template is nested too deeply to compile.") from error


@lru_cache(maxsize=64)
def has_generation_tags(template: str) -> bool:
    """Whether a template marks what a model generated; comments and raw text do not count."""
    tokens = [token for token in _ENVIRONMENT.lex(template) if token[1] != "whitespace"]
    return any(
        before[1] == "block_begin" and token[1:] == ("name", "generation")
        for before, token in pairwise(tokens)
    )


@lru_cache(maxsize=64)
def read_names(template: str) -> frozenset[str]:
    """All names by which a template can ask for a key of a message, and its other short texts."""
    tree = _ENVIRONMENT.parse(template)
    constants = (constant.value for constant in tree.find_all(jinja2.nodes.Const))
    return frozenset(
        [
            *(name.attr for name in tree.find_all(jinja2.nodes.Getattr)),
            *(value for value in constants if isinstance(value, str)),
        ]
    )


def uses_date(template: str) -> bool:
    """Whether a template can print today's date."""
    return "strftime_now" in template


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON values
    """The messages as the installed transformers shows them to a template.

    It drops keys whose value is None and copies the reasoning under the names that templates read.
    """
    if all(map(_is_plain, messages)) and _keeps_plain_messages():
        return [dict(message) for message in messages]
    return _prepared(messages)


def _is_plain(message: Mapping[str, Any]) -> bool:  # Any: JSON values
    return len(message) == 2 and type(message.get("role")) is type(message.get("content")) is str


@lru_cache(maxsize=1)
def _keeps_plain_messages() -> bool:
    """Whether the installed transformers shows a message of a role and a text to templates as it is."""
    plain_message = {"role": "assistant", "content": "text"}
    return _prepared([plain_message]) == [plain_message]


def _prepared(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON values
    prepared: Any = list(messages)
    for step in _preparing_steps():
        prepared = step(prepared)
    return [dict(message) for message in prepared]


@lru_cache(maxsize=1)
def _preparing_steps() -> tuple[Callable[[Any], Any], ...]:  # Any: transformers has no usable types
    from transformers.utils import chat_template_utils

    steps = (
        getattr(chat_template_utils, name, None)
        for name in ("_normalize_chat_messages", "_alias_reasoning_fields")
    )
    return tuple(step for step in steps if step is not None)


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    variables: Mapping[str, Any] | None = None,
    limits: TemplateLimits = DEFAULT_LIMITS,
    now: dt.datetime | None = None,
) -> RenderedText:
    """Text of a conversation with the origin of every character.

    Args:
        template: Jinja source of a chat template.
        messages: As `prepare_messages` returns them.
        tools: Tool definitions, JSON Schema objects.
        documents: Documents for templates that take them.
        add_generation_prompt: Ask for the generation prompt.
        variables: Special tokens and template kwargs.
        limits: What the template may take.
        now: What templates that print the date take it to be; the clock's time by default.

    Raises:
        RefusedError: The template does not take the conversation.
        ConversationError: It goes beyond the limits, or does something unsafe.
        RecursionError: The data is nested too deeply.
    """
    try:
        with limited(limits) as usage:
            context = {
                "messages": wrap(messages, ("messages",)),
                "tools": wrap(tools, ("tools",)),
                "documents": wrap(documents, ("documents",)),
                "add_generation_prompt": add_generation_prompt,
            }
            for name, value in (variables or {}).items():
                context[name] = wrap(value, ("template", name))
            if now is not None:
                context["strftime_now"] = lambda pattern: formatted_time(now, pattern)
            usage.begin()
            text = track(_compiled(template).render(context))
            usage.check_printed(len(text))
    except jinja2.exceptions.SecurityError as error:
        raise ConversationError(
            f"the chat template does something unsafe: {_said(error.message or '')}"
        ) from error
    except jinja2.exceptions.TemplateError as error:
        reason = _said(error.message or "")
        reason += _place(error, reason, messages)
        raise RefusedError(
            f"the chat template refuses the conversation: {reason}", hint=_TEMPLATE_HINT
        ) from error
    except (RecursionError, TemplateLimitError):
        raise
    except Exception as error:  # A template can fail in any way.
        reason = f"{type(error).__name__}: {_said(error)}"
        reason += _place(error, reason, messages)
        raise RefusedError(
            f"the chat template fails on the conversation: {reason}", hint=_TEMPLATE_HINT
        ) from error
    return RenderedText(plain(text), merge_runs(text._runs))


def _said(error: object) -> str:
    """The text of an error of the template."""
    return foreign(with_python_types(str(error)))


def _place(error: BaseException, text: str, messages: Sequence[Mapping[str, Any]]) -> str:  # Any: JSON values
    """Where the template was, and the first role that templates need not know, as an addition to an error."""
    unusual = next((i for i, each in enumerate(messages) if each.get("role") not in _USUAL_ROLES), None)
    role = (
        ""
        if unusual is None
        else f"messages[{unusual}] has the role {foreign(repr(str(messages[unusual].get('role'))))}"
    )
    found = ", ".join(filter(None, (place_of(error, text), role)))
    return f" ({found})" if found else ""
