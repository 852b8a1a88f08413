"""How large the result of an operation will be, guessed before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tokscore.rendering.templates.limits import (
    ITEM_CHARACTERS,
    PIECE_CHARACTERS,
    TemplateLimitError,
    check,
    go_through,
    weigh,
)

_MAX_BITS = 2**17
_MAX_PRECISION = 1_000
_MAX_SEARCH = 2**32
_MAX_SORTED = 2**18  # items
_SMALL = 2**20
_FEW = 64  # items
_ENDLESS = 2**62
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
FROM_THE_COMPILER = frozenset({"_loop_vars", "_block_vars"})
_NUMBER = re.compile(r"\d+")


def check_operands(operator: str, left: Any, right: Any) -> None:  # Any: template values
    """Refuse an operation whose result would be too large.

    Raises:
        TemplateLimitError: It goes beyond the limits of the running template.
    """
    if isinstance(left, int) and left.bit_length() > _MAX_BITS:
        _refuse_number()
    if isinstance(right, int) and right.bit_length() > _MAX_BITS:
        _refuse_number()
    if operator == "*":
        for times, repeated in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(repeated, (str, bytes)):
                check(times * len(repeated))
            elif isinstance(times, int) and isinstance(repeated, (list, tuple)):
                check(times * len(repeated) * ITEM_CHARACTERS)
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
            _refuse_number()
    elif operator == "%" and isinstance(left, (str, bytes)):
        arguments = right if isinstance(right, tuple) else (right,)
        check_format(left if isinstance(left, str) else left.decode("latin-1"), "%", arguments)


def _refuse_number() -> None:
    raise TemplateLimitError("makes the chat template calculate with numbers of more than 39,000 digits.")


def check_format(template: str, mark: str, arguments: Sequence[Any]) -> None:  # Any: template values
    """Refuse to fill in a format whose result would be too large.

    Args:
        template: The format.
        mark: What opens a field in it.
        arguments: What it is filled with.
    """
    n_fields = template.count(mark)
    if not n_fields:
        return
    widths = sum(min(int(digits[:18]), 2**60) for digits in _NUMBER.findall(template))
    variable = max((abs(value) for value in arguments if isinstance(value, int)), default=0)
    has_variable_width = "*" in template or "{" in template.replace("{{", "")[1:]
    largest = max((weigh(value) for value in arguments), default=0)
    check(n_fields * (largest + 32) + widths + (n_fields * variable if has_variable_width else 0))


def check_method(owner: str | int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a method of a string or number whose result or cost would be too large."""
    if (estimate := _METHODS.get(name)) is not None:
        named = {key: value for key, value in kwargs.items() if key not in FROM_THE_COMPILER}
        _check_estimate(estimate, owner, *args, **named)


def _check_estimate(estimate: Callable[..., int], *args: Any, **kwargs: Any) -> None:  # Any: template values
    try:
        size = estimate(*args, **kwargs)
    except (TypeError, ValueError, AttributeError):
        return  # what is called will say what is wrong with its arguments
    check(size)


def _width(_owner: object, width: int, _fill: str = "") -> int:
    return width


def _expanded(owner: str, tabsize: int = 8) -> int:
    return len(owner) + owner.count("\t") * tabsize


def _replaced(owner: str, old: str, new: str, count: int = -1) -> int:
    check(_searched(owner, old))
    n = owner.count(old)
    made = (n if count < 0 else min(n, count)) * len(new)
    return len(owner) + made + (0 if old else PIECE_CHARACTERS * len(owner))


def _translated(owner: str, table: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    return len(owner) * max((len(value) for value in values if isinstance(value, str)), default=1)


def check_search(wanted: object, searched: object) -> None:
    """Refuse to look for a text in another where that could take minutes; count going through many items."""
    if isinstance(searched, str):
        if isinstance(wanted, str):
            check(_searched(searched, wanted))
    elif isinstance(searched, (list, tuple)):
        if len(searched) > _FEW:
            weigh(searched)  # comparing with each costs at most what it would print
    elif isinstance(searched, range) and type(wanted) is not int and len(searched) > _FEW:
        go_through(len(searched))


def _searched(owner: str, wanted: object = None, *_rest: object) -> int:
    """Searching costs up to the product of both lengths, and so does stripping a set of characters."""
    if not isinstance(wanted, str):
        return 0
    return _ENDLESS if len(owner) * len(wanted) > _MAX_SEARCH else 0


def _split(owner: str, sep: str | None = None, maxsplit: int = -1) -> int:
    if len(owner) < _SMALL:
        return 0
    check(_searched(owner, sep))
    n = len(owner) // 2 if sep is None else owner.count(sep)
    return PIECE_CHARACTERS * (n if maxsplit < 0 else min(n, maxsplit))


def _lines(owner: str, keepends: bool = False) -> int:  # noqa: ARG001
    return PIECE_CHARACTERS * sum(map(owner.count, _LINE_ENDS)) if len(owner) >= _SMALL else 0


def _joined(owner: str, parts: Sequence[object]) -> int:
    return len(owner) * (len(parts) - 1)


_METHODS: Mapping[str, Callable[..., int]] = {
    "ljust": _width,
    "rjust": _width,
    "center": _width,
    "zfill": _width,
    "expandtabs": _expanded,
    "replace": _replaced,
    "translate": _translated,
    "find": _searched,
    "index": _searched,
    "count": _searched,
    "partition": _searched,
    "rfind": _searched,
    "rindex": _searched,
    "rpartition": _searched,
    "strip": _searched,
    "lstrip": _searched,
    "rstrip": _searched,
    "split": _split,
    "rsplit": _split,
    "splitlines": _lines,
    "join": _joined,
    "to_bytes": lambda _owner, length=1, *_rest, **_more: length,
}

# Filters that print their value, so that a container is written out first.
_PRINTING = frozenset(
    {"capitalize", "center", "e", "escape", "forceescape", "format", "indent", "lower", "pprint", "replace"}
    | {"safe", "string", "striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize"}
    | {"wordcount", "wordwrap"}
)
# Filters that take time beyond the length of their text, and that no chat template needs for long texts.
_SLOW = frozenset({"striptags", "urlize", "wordwrap", "pprint", "xmlattr"})


def check_filter(name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a filter whose result or cost would be too large."""
    size = len(value) if isinstance(value, str) else weigh(value) if name in _PRINTING else 0
    if name in _SLOW:
        check(size * (1_000 + sum(len(item) for item in (*args, *kwargs.values()) if isinstance(item, str))))
    if (estimate := _FILTERS.get(name)) is not None:
        _check_estimate(estimate, value, *args, **kwargs)


def _indented(value: object, width: int | str = 4, *_rest: object, **_more: object) -> int:
    text = value if isinstance(value, str) else str(value)
    return len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width))


def _sorted(value: object, *_rest: object, **_more: object) -> int:
    """Sorting asks for no time on the way, and no chat template needs to sort so much."""
    return _ENDLESS if isinstance(value, Collection) and len(value) > _MAX_SORTED else 0


def _rounded(_value: object, precision: int = 0, *_rest: object, **_more: object) -> int:
    return _ENDLESS if abs(precision) > _MAX_PRECISION else 0


def _json(
    value: object, _ascii: object = False, indent: int | str | None = None, *_rest: object, **_more: object
) -> int:
    width = indent if isinstance(indent, int) else len(indent or "")
    return weigh(value) * width if width > 16 else 0


def _formatted(value: object, *args: object, **kwargs: object) -> int:
    check_format(str(value), "%", (*args, *kwargs.values()))
    return 0


_FILTERS: Mapping[str, Callable[..., int]] = {
    "center": lambda _value, width=80: width,
    "indent": _indented,
    "batch": lambda _value, linecount, *_rest, **_more: ITEM_CHARACTERS * linecount,
    "slice": lambda _value, slices, *_rest, **_more: ITEM_CHARACTERS * slices,
    "round": _rounded,
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _sorted),
    "tojson": _json,
    "format": _formatted,
    "replace": lambda value, old, new, count=None: _replaced(
        str(value), str(old), str(new), -1 if count is None else count
    ),
    "trim": lambda value, chars="": _searched(str(value), chars),
}

# The others cost no more than their text.
GROWING_FILTERS = _FILTERS.keys() | _SLOW
