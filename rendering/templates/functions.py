"""Filters, tests and functions of templates: within the limits, and keeping the origin of text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from string import Formatter
from typing import Any, NoReturn

import jinja2
from jinja2.filters import do_title
from jinja2.utils import _PassArg

from tokscore.rendering.templates.cost import GROWING_FILTERS, check_filter, check_search
from tokscore.rendering.templates.limits import check, read, step, take_result, weigh
from tokscore.rendering.templates.markup import SafeStr, unmarked
from tokscore.rendering.templates.strings import (
    TrackedStr,
    concat,
    literal,
    origin_of,
    plain,
    syntax,
    track,
    untracked,
)
from tokscore.rendering.templates.values import TrackedBool

_LONGEST_FIELD = 32  # characters that one of a date pattern can stand for
# These look at what a value is and not through it, however long it is.
_INSTANT_FILTERS = frozenset({"length", "count"})
_INSTANT_TESTS = frozenset(
    {"boolean", "callable", "defined", "false", "float", "integer", "mapping", "none", "number", "sameas"}
    | {"string", "true", "undefined"}
)


def guarded_filter(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:  # Any: template values
    """The same filter within the limits."""
    if name in _INSTANT_FILTERS:

        @wraps(apply)
        def counted(*args: Any, **kwargs: Any) -> Any:  # Any: template values
            step()
            return apply(*args, **kwargs)

        return counted

    passes = _PassArg.from_obj(apply)
    n_passed = 0 if passes is None else 1

    is_harmless = name not in GROWING_FILTERS

    @wraps(apply)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # Any: template values
        step()
        value = args[n_passed] if len(args) > n_passed else None
        if not (is_harmless and isinstance(value, str)):
            check_filter(name, value, args[n_passed + 1 :], kwargs)
        read(value)
        result = apply(*args, **kwargs)
        take_result(result)
        return result

    return guarded


def guarded_test(name: str, apply: Any) -> Callable[..., Any]:  # Any: template values
    """The same test within the limits."""
    if name in _INSTANT_TESTS:
        instant: Callable[..., Any] = apply
        return instant
    n_passed = 0 if _PassArg.from_obj(apply) is None else 1

    @wraps(apply)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # Any: template values
        values = args[n_passed:]
        if len(values) == 1 and not kwargs:
            read(values[0])
            return apply(*args)
        if len(values) > 1:
            check_search(*values[:2])
        for value in values:
            if isinstance(value, (list, tuple, dict)) and len(values) > 1:
                weigh(value)
        read(*values)
        return apply(*args, **kwargs)

    return guarded


def refuse_chance(*_args: Any, **_kwargs: Any) -> NoReturn:  # Any: template values
    """Refuse what would make every rendering another one.

    Raises:
        SecurityError: Always.
    """
    raise jinja2.exceptions.SecurityError("it asks for chance, so that no two renderings are equal")


def format_tracked(
    formatter: Formatter, template: TrackedStr, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TrackedStr:
    """`str.format` of tracked text and values."""
    pieces: list[str] = []
    automatic = 0
    for text, name, spec, conversion in formatter.parse(plain(template)):
        if text:
            pieces.append(syntax(text, origin_of(template)))
        if name is None:
            continue
        if name == "" or name[0] in ".[":
            name, automatic = f"{automatic}{name}", automatic + 1
        value, _ = formatter.get_field(name, args, kwargs)
        if spec or conversion:
            shown = formatter.format_field(formatter.convert_field(value, conversion), spec or "")
            pieces.append(syntax(plain(shown), origin_of(value)))
        else:
            pieces.append(track(value))
    return concat(pieces)


def raise_exception(message: str) -> NoReturn:
    """Let the template refuse the conversation.

    Raises:
        TemplateError: Always.
    """
    raise jinja2.exceptions.TemplateError(plain(str(message)))


def strftime_now(pattern: str) -> TrackedStr:
    """Local time in the words of `pattern`, as transformers gives it."""
    return formatted_time(dt.datetime.now(), pattern)


def formatted_time(now: dt.datetime, pattern: str) -> TrackedStr:
    """`now` in the words of `pattern`, as text of the template.

    Raises:
        TemplateLimitError: The result could be too long.
    """
    check(_LONGEST_FIELD * len(pattern))
    return literal(now.strftime(plain(pattern)))


def same_as(value: object, other: object) -> bool:
    """Whether both are one object; tracked booleans stand for their own."""
    if isinstance(value, TrackedBool) and isinstance(other, bool):
        return bool(value) is other
    return value is other


def title(value: object) -> TrackedStr:
    """Text with each word capitalised."""
    text = track(value)
    changed = do_title(plain(text))
    return TrackedStr(changed, text._runs) if len(changed) == len(text) else untracked(changed)


def indent_lines(s: object, width: int | str = 4, first: bool = False, blank: bool = False) -> TrackedStr:
    """Text whose lines are indented, all but the first by default."""
    margin = track(width) if isinstance(width, str) else literal(" " * width)
    newline = literal("\n")
    lines = (unmarked(track(s)) + newline).splitlines()
    if not blank:
        rest = [margin + line if line else line for line in lines[1:]]
    else:
        rest = [margin + line for line in lines[1:]]
    indented = newline.join([lines[0], *rest])
    indented = margin + indented if first else indented
    return SafeStr(indented) if isinstance(s, SafeStr) else indented
