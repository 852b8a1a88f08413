"""Where characters of a rendered text came from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

SYNTAX = -1
WHOLE = -2
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_SCAFFOLD_FIELDS = frozenset({"role", "name", "tool_call_id", "id"})
_USUAL_FIELDS = frozenset({"role", "content", "tool_calls", *REASONING_FIELDS})
_SCAFFOLD_KEYS = frozenset({"id", "type", "index"})


class Origin(NamedTuple):
    """An input value that text can come from.

    Attributes:
        path: Where it lies, such as `("messages", 2, "tool_calls", 0, "function", "name")`.
        message: Index of its message, None outside the messages.
        root: Name of the field that holds it: content, reasoning_content, tool_calls, role, tools, …
        is_body: It is what a message says, not a role word, an id or the type of a part.
    """

    path: tuple[str | int, ...]
    message: int | None
    root: str
    is_body: bool


_make = tuple.__new__  # templates make runs by the dozen, and their own constructor takes twice as long


class Run(NamedTuple):
    """A stretch of characters with one origin.

    Attributes:
        length: Number of characters.
        origin: The input value, `UNTRACKED`, or None for template text.
        start: Offset of the first character inside the input string; `SYNTAX` for characters that stand
            for the value without being copied from it (quotes, brackets, digits), `WHOLE` where a list or
            object was printed as Python shows it, everything inside included.
        writer: Message whose loop iteration wrote it, None outside such loops.
        generated: Inside a `{% generation %}` block.
    """

    length: int
    origin: Origin | None
    start: int = SYNTAX
    writer: int | None = None
    generated: bool = False

    def part(self, skip: int, length: int) -> Run:
        """`length` characters of it after the first `skip`."""
        start = self.start if self.start < 0 else self.start + skip
        return _make(Run, (length, self.origin, start, self.writer, self.generated))

    def by(self, writer: int) -> Run:
        """The same, written by the loop iteration of a message."""
        return _make(Run, (self.length, self.origin, self.start, writer, self.generated))


UNTRACKED = Origin(("untracked",), None, "untracked", is_body=False)

Runs = tuple[Run, ...]


def origin_of_path(path: tuple[str | int, ...]) -> Origin:
    """The origin at `path` of the template's variables."""
    n = len(path)
    if path[0] == "messages" and (n == 2 or (n == 3 and path[2] in _USUAL_FIELDS)):
        return _usual_origin(path)
    return _origin_of_path(path)


@lru_cache(maxsize=8192)
def _usual_origin(path: tuple[str | int, ...]) -> Origin:
    return _origin_of_path(path)


def _origin_of_path(path: tuple[str | int, ...]) -> Origin:
    if path[0] != "messages":
        return Origin(path, None, str(path[0]), is_body=False)
    message = path[1] if len(path) > 1 and isinstance(path[1], int) else None
    if len(path) < 3:
        return Origin(path, message, "message", is_body=False)
    root = str(path[2])
    if root in REASONING_FIELDS:  # transformers copies the reasoning under each of these names
        root = REASONING_FIELDS[0]
        path = (*path[:2], root, *path[3:])
    scaffold = root in _SCAFFOLD_FIELDS or (
        root in {"content", "tool_calls"} and len(path) == 5 and path[4] in _SCAFFOLD_KEYS
    )
    return Origin(path, message, root, is_body=not scaffold)


def merge_runs(runs: Iterable[Run]) -> Runs:
    """The same runs with neighbours of equal owner joined where nothing is lost."""
    merged: list[Run] = []
    for run in runs:
        if merged:
            last = merged[-1]
            joins = (
                last.origin == run.origin
                and last.writer == run.writer
                and last.generated == run.generated
                and (run.start == last.start + last.length if last.start >= 0 else run.start == last.start)
            )
            if joins:
                length = last.length + run.length
                merged[-1] = Run(length, last.origin, last.start, last.writer, last.generated)
                continue
        merged.append(run)
    return tuple(merged)
