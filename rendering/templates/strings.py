"""Strings that remember where each character came from.

A `TrackedStr` is a `str` whose runs say, for every stretch of characters, which input value they were copied
from and which loop iteration over the messages wrote them. All text operations that chat templates use
keep the runs; text that went through anything else is a plain `str` and is marked untracked when it is
used again, so nothing is ever attributed by guess.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

from tokscore.rendering.templates.limits import (
    ITEM_CHARACTERS,
    PIECE_CHARACTERS,
    TemplateUsage,
    check,
    current_usage,
    take,
    weigh,
)
from tokscore.rendering.templates.origins import UNTRACKED, WHOLE, Origin, Run, Runs

_LARGE = 2**16


class TrackedStr(str):
    """A string with runs; see the module's text. Methods return tracked strings wherever `str`'s do."""

    __slots__ = ("_runs",)
    _runs: Runs

    def __new__(cls, text: str, runs: Runs | None = None) -> TrackedStr:
        """A tracked string of `text`; `runs` must cover it exactly, without them it is untracked."""
        usage = current_usage()
        if usage is not None:
            usage.n_characters += len(text)
            if usage.n_characters > usage.next_look:
                usage.look()
        if usage is None or len(text) < _LARGE:
            made = str.__new__(cls, text)
        else:
            made = str.__new__(_LargeStr, text)
            made._usage = usage
        if runs is None:
            runs = (Run(len(text), UNTRACKED),) if text else ()
        made._runs = runs
        return made

    # jinja2 and templates call str() on values that are strings already.
    def __str__(self) -> str:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (str, (plain(self),))

    def _slice(self, start: int, stop: int) -> TrackedStr:
        if start <= 0 and stop >= len(self):
            return self
        text = str.__getitem__(self, slice(start, stop))
        if len(self._runs) == 1:
            return TrackedStr(text, (self._runs[0].part(max(start, 0), len(text)),) if text else ())
        runs, position = [], 0
        for run in self._runs:
            low, high = max(start, position), min(stop, position + run.length)
            if high > low:
                runs.append(run.part(low - position, high - low))
            position += run.length
            if position >= stop:
                break
        return TrackedStr(text, tuple(runs))

    def __getitem__(self, key: SupportsIndex | slice) -> TrackedStr:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self._slice(start, max(start, stop))
            take(PIECE_CHARACTERS * len(range(start, stop, step)))
            return concat([self._slice(i, i + 1) for i in range(start, stop, step)])
        if not hasattr(key, "__index__"):
            raise TypeError(f"string indices must be integers, not '{type(key).__name__}'")
        index = key.__index__()
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError("string index out of range")
        return self._slice(index, index + 1)

    def __iter__(self) -> Iterator[TrackedStr]:
        text, position = plain(self), 0
        take(PIECE_CHARACTERS * len(text))
        for run in self._runs:
            for skip in range(run.length):
                yield TrackedStr(text[position + skip], (run.part(skip, 1),))
            position += run.length

    def __add__(self, other: str) -> TrackedStr:
        if type(other) is TrackedStr and self and other:
            return TrackedStr(str.__add__(self, other), self._runs + other._runs)
        if not isinstance(other, str):
            return NotImplemented
        return concat((self, other))

    def __radd__(self, other: str) -> TrackedStr:
        if not isinstance(other, str):
            return NotImplemented
        return concat((other, self))

    def __mul__(self, times: SupportsIndex) -> TrackedStr:
        n = max(operator.index(times), 0)
        if len(self._runs) == 1 and self._runs[0].origin is None:  # what the template repeats of its own
            text = str.__mul__(self, n)
            return TrackedStr(text, (self._runs[0]._replace(length=len(text)),) if text else ())
        check(n * ITEM_CHARACTERS * len(self._runs))
        return TrackedStr(str.__mul__(self, n), self._runs * n)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> TrackedStr:  # Any: whatever a template formats
        return percent_format(self, values)

    def __rmod__(self, template: str) -> TrackedStr:
        return percent_format(track(template), self)

    def __format__(self, spec: str) -> str:
        return plain(self).__format__(spec) if spec else self

    def join(self, parts: Iterable[str]) -> TrackedStr:
        """`str.join`; every part keeps its runs."""
        pieces: list[str] = []
        for i, part in enumerate(parts):
            if not isinstance(part, str):
                raise TypeError(f"sequence item {i}: expected str instance, {type(part).__name__} found")
            if pieces:
                pieces.append(self)
            pieces.append(part)
        return concat(pieces)

    def lstrip(self, chars: str | None = None) -> TrackedStr:
        """`str.lstrip`."""
        return self._slice(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> TrackedStr:
        """`str.rstrip`."""
        return self._slice(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None) -> TrackedStr:
        """`str.strip`."""
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> TrackedStr:
        """`str.removeprefix`."""
        return self._slice(len(prefix), len(self)) if str.startswith(self, prefix) else self

    def removesuffix(self, suffix: str) -> TrackedStr:
        """`str.removesuffix`."""
        return self._slice(0, len(self) - len(suffix)) if str.endswith(self, suffix) else self

    def _locate(self, pieces: Sequence[str]) -> list[TrackedStr]:
        """Slices for plain pieces that occur in this order."""
        found, position = [], 0
        for piece in pieces:
            at = str.find(self, piece, position)
            found.append(self._slice(at, at + len(piece)))
            position = at + len(piece)
        return found

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[TrackedStr]:  # type: ignore[override]
        """`str.split`."""
        pieces = str.split(self, sep, maxsplit)
        if sep is None:
            return self._locate(pieces)
        return self._separated(pieces, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[TrackedStr]:  # type: ignore[override]
        """`str.rsplit`."""
        pieces = str.rsplit(self, sep, maxsplit)
        if sep is None:
            return self._locate(pieces)
        return self._separated(pieces, len(sep))

    def _separated(self, pieces: Sequence[str], gap: int) -> list[TrackedStr]:
        found, position = [], 0
        for piece in pieces:
            found.append(self._slice(position, position + len(piece)) if piece else EMPTY)
            position += len(piece) + gap
        return found

    def splitlines(self, keepends: bool = False) -> list[TrackedStr]:  # type: ignore[override]
        """`str.splitlines`."""
        found, position = [], 0
        for kept, bare in zip(str.splitlines(self, True), str.splitlines(self), strict=True):
            length = len(kept) if keepends else len(bare)
            found.append(self._slice(position, position + length) if length else EMPTY)
            position += len(kept)
        return found

    def partition(self, sep: str) -> tuple[TrackedStr, TrackedStr, TrackedStr]:
        """`str.partition`."""
        at = str.find(self, sep)
        if not sep or at < 0:
            str.partition(self, sep)
            return self, EMPTY, EMPTY
        return self._slice(0, at), self._slice(at, at + len(sep)), self._slice(at + len(sep), len(self))

    def rpartition(self, sep: str) -> tuple[TrackedStr, TrackedStr, TrackedStr]:
        """`str.rpartition`."""
        at = str.rfind(self, sep)
        if not sep or at < 0:
            str.rpartition(self, sep)
            return EMPTY, EMPTY, self
        return self._slice(0, at), self._slice(at, at + len(sep)), self._slice(at + len(sep), len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> TrackedStr:
        """`str.replace`; what is put in keeps the runs of `new`."""
        if not old:
            pieces: list[str] = []
            limit = count.__index__()
            for i, character in enumerate([*self, EMPTY]):
                if limit < 0 or i < limit:
                    pieces.append(new)
                pieces.append(character)
            return concat(pieces)
        if str.find(self, old) < 0:
            return self
        return track(new).join(self.split(old, count))

    def _mapped(self, change: Callable[[str], str]) -> TrackedStr:
        """The same runs where `change` keeps the length, else character by character."""
        changed = change(plain(self))
        if len(changed) == len(self):
            return TrackedStr(changed, self._runs)
        pieces = []
        for character in self:
            piece = change(plain(character))
            pieces.append(
                TrackedStr(piece, (character._runs[0]._replace(length=len(piece)),) if piece else ())
            )
        mapped = concat(pieces)
        return mapped if plain(mapped) == changed else untracked(changed)

    def upper(self) -> TrackedStr:
        """`str.upper`."""
        return self._mapped(str.upper)

    def lower(self) -> TrackedStr:
        """`str.lower`."""
        return self._mapped(str.lower)

    def swapcase(self) -> TrackedStr:
        """`str.swapcase`."""
        return self._mapped(str.swapcase)

    def casefold(self) -> TrackedStr:
        """`str.casefold`."""
        return self._mapped(str.casefold)

    def capitalize(self) -> TrackedStr:
        """`str.capitalize`."""
        return self._mapped(str.capitalize)

    def title(self) -> TrackedStr:
        """`str.title`."""
        return self._mapped(str.title)

    def _padded(self, padded: str, left: int) -> TrackedStr:
        right = len(padded) - left - len(self)
        return concat((literal(padded[:left]), self, literal(padded[len(padded) - right :] if right else "")))

    def ljust(self, width: SupportsIndex, fillchar: str = " ") -> TrackedStr:
        """`str.ljust`."""
        return self._padded(str.ljust(self, width, fillchar), 0)

    def rjust(self, width: SupportsIndex, fillchar: str = " ") -> TrackedStr:
        """`str.rjust`."""
        padded = str.rjust(self, width, fillchar)
        return self._padded(padded, len(padded) - len(self))

    def center(self, width: SupportsIndex, fillchar: str = " ") -> TrackedStr:
        """`str.center`."""
        padded = str.center(self, width, fillchar)
        total = len(padded) - len(self)
        return self._padded(padded, total // 2 + (total & width.__index__() & 1))


class _LargeStr(TrackedStr):
    """One that gives its characters back when it is gone, so that only what is held counts."""

    __slots__ = ("_usage",)
    _usage: TemplateUsage

    def __del__(self) -> None:
        self._usage.n_characters -= len(self)


# All that are not marked as safe.
UNMARKED_TYPES = frozenset({TrackedStr, _LargeStr})


def plain(text: str) -> str:
    """The same characters as an ordinary `str`."""
    return str.__str__(text)


def literal(text: str) -> TrackedStr:
    """Text of the template itself."""
    return TrackedStr(text, (Run(len(text), None),) if text else ())


def untracked(text: str) -> TrackedStr:
    """Text whose origin was lost."""
    return TrackedStr(text)


def copied(text: str, origin: Origin) -> TrackedStr:
    """An input string."""
    return TrackedStr(text, (Run(len(text), origin, 0),) if text else ())


def syntax(text: str, origin: Origin | None) -> TrackedStr:
    """Text that stands for an input value without being a copy of its characters."""
    return TrackedStr(text, (Run(len(text), origin),) if text else ())


EMPTY = TrackedStr("", ())


class TrackedValue:
    """Base of the input values that are no strings."""

    _origin: Origin


def origin_of(value: object) -> Origin | None:
    """Where a value of a template came from, None if that is not known."""
    if isinstance(value, TrackedStr):
        return value._runs[0].origin if value._runs else None
    return value._origin if isinstance(value, TrackedValue) else None


def track(value: object) -> TrackedStr:
    """The text that a template prints for `value`, with its origin."""
    if isinstance(value, TrackedStr):
        return value
    if isinstance(value, str):
        return untracked(value)
    origin = origin_of(value)
    if not isinstance(value, (int, float)) and value is not None:
        weigh(value)
    text = plain(str(value))
    if origin is None and not isinstance(value, (int, float)) and value is not None and text:
        return untracked(text)
    if isinstance(value, (dict, list)):
        return TrackedStr(text, (Run(len(text), origin, WHOLE),))
    return syntax(text, origin)


def concat(parts: Iterable[object]) -> TrackedStr:
    """All parts one after the other."""
    texts: list[str] = []
    runs: list[Run] = []
    length = 0
    for part in parts:
        piece = part if isinstance(part, TrackedStr) else track(part)
        if piece._runs:
            texts.append(piece)
            runs.extend(piece._runs)
            length += len(piece)
            if length > _LARGE:
                check(length + ITEM_CHARACTERS * len(runs))
    return TrackedStr("".join(texts), tuple(runs))


_PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<spec>[#0\- +]*\d*(?:\.\d+)?)[hlL]?(?P<kind>[a-zA-Z%])")


def percent_format(template: TrackedStr, values: Any) -> TrackedStr:  # Any: whatever a template formats
    """`template % values`, where `%s` keeps the runs of what it prints."""
    arguments = values if isinstance(values, tuple) else (values,)
    expected = str.__mod__(plain(template), values)
    pieces: list[str] = []
    position = used = 0
    for match in _PERCENT.finditer(plain(template)):
        pieces.append(template._slice(position, match.start()) if match.start() > position else EMPTY)
        position = match.end()
        if match["kind"] == "%":
            pieces.append(template._slice(match.start(), match.start() + 1))
            continue
        if match["key"] is not None:
            value = values[match["key"]]
        elif used < len(arguments):
            value = arguments[used]
            used += 1
        else:
            return untracked(plain(expected))
        if match["kind"] == "s" and not match["spec"]:
            pieces.append(track(value))
        else:
            text = ("%" + match["spec"] + match["kind"]) % (value,)
            pieces.append(syntax(text, origin_of(value)))
    if position < len(template):
        pieces.append(template._slice(position, len(template)))
    formatted = concat(pieces)
    return formatted if plain(formatted) == plain(expected) else untracked(plain(expected))
