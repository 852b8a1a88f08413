"""Strings that templates mark as safe: as in jinja2, text that is added to them is escaped for HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import markupsafe

from tokscore.rendering.templates.strings import TrackedStr, concat, percent_format, plain, track, untracked


class SafeStr(TrackedStr):
    """A tracked string that behaves like `markupsafe.Markup`."""

    __slots__ = ()

    def __new__(cls, text: TrackedStr) -> SafeStr:
        """The same text and runs, marked as safe."""
        made = str.__new__(cls, plain(text))
        made._runs = text._runs
        return made

    def __html__(self) -> str:
        return plain(self)

    def __add__(self, other: str) -> TrackedStr:
        return SafeStr(concat((self, escaped(other)))) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> TrackedStr:
        return SafeStr(concat((escaped(other), self))) if isinstance(other, str) else NotImplemented

    def __mod__(self, values: Any) -> TrackedStr:  # Any: whatever a template formats
        expected = plain(markupsafe.Markup(plain(self)) % values)  # noqa: S704  a template's own word
        formatted = percent_format(unmarked(self), values)
        return SafeStr(formatted if plain(formatted) == expected else untracked(expected))

    def join(self, parts: Iterable[str]) -> TrackedStr:
        """`Markup.join`."""
        return SafeStr(unmarked(self).join([escaped(part) for part in parts]))

    def replace(self, old: str, new: str, /, count: Any = -1) -> TrackedStr:  # Any: as of `str.replace`
        """`Markup.replace`."""
        return SafeStr(unmarked(self).replace(old, unmarked(escaped(new)), count))


def unmarked(text: TrackedStr) -> TrackedStr:
    """The same without the mark."""
    return TrackedStr(plain(text), text._runs) if isinstance(text, SafeStr) else text


def safe(value: object) -> TrackedStr:
    """The filter `safe`."""
    return SafeStr(track(value))


def escaped(value: object) -> TrackedStr:
    """The filter `escape`: the text as HTML, or as it is where it is marked as safe."""
    return value if isinstance(value, SafeStr) else forced(value)


def forced(value: object) -> TrackedStr:
    """The filter `forceescape`."""
    text = unmarked(track(value))
    return SafeStr(text._mapped(lambda each: plain(markupsafe.escape(each))))


def _marked(name: str) -> Callable[..., Any]:
    """A method of strings whose results stay marked."""
    method: Callable[..., Any] = getattr(TrackedStr, name)

    def marked(self: SafeStr, *args: Any, **kwargs: Any) -> Any:  # Any: as of the method
        found = method(unmarked(self), *args, **kwargs)
        if isinstance(found, (list, tuple)):
            return type(found)(SafeStr(track(part)) for part in found)
        return SafeStr(track(found))

    return marked


for _name in (
    "__getitem__", "__mul__", "__rmul__", "capitalize", "casefold", "center", "expandtabs", "ljust", "lower",
    "lstrip", "partition", "removeprefix", "removesuffix", "rjust", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "strip", "swapcase", "title", "upper", "zfill",
):  # fmt: skip
    setattr(SafeStr, _name, _marked(_name))
