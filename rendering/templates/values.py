"""Input data whose leaves know where they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from tokscore.rendering.templates.origins import origin_of_path
from tokscore.rendering.templates.strings import TrackedStr, TrackedValue, copied, syntax

_USUAL_LENGTH = 32


class TrackedInt(int, TrackedValue):
    """An input number."""


class TrackedFloat(float, TrackedValue):
    """An input number."""


class TrackedBool(int, TrackedValue):
    """An input truth value; `bool` itself cannot be subclassed, so the environment's tests know it."""

    def __str__(self) -> str:
        return str(bool(self))

    __repr__ = __str__


class TrackedDict(dict[Any, Any], TrackedValue):  # Any: JSON values
    """An input object."""


class TrackedList(list[Any], TrackedValue):  # Any: JSON values
    """An input array."""


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    subclasses: list[type] = cls.__subclasses__()
    for below in subclasses:
        yield from _with_subclasses(below)


# Name of every tracked type -> that of the Python type it stands for.
_PYTHON_TYPES = {
    cls.__name__: next(base.__name__ for base in cls.__mro__ if base.__module__ == "builtins")
    for root in (TrackedStr, TrackedValue)
    for cls in _with_subclasses(root)
} | {TrackedBool.__name__: "bool"}
_OWN_TYPE = re.compile(rf"\b(?:tokscore\.[\w.]+\.)?({'|'.join(_PYTHON_TYPES)})\b")


def with_python_types(text: str) -> str:
    """The text of an error with Python's own types in place of the tracked ones."""
    return _OWN_TYPE.sub(lambda found: _PYTHON_TYPES[found[1]], text)


def wrap(value: Any, path: tuple[str | int, ...]) -> Any:  # Any: JSON values
    """A copy of JSON-like data whose leaves know their path.

    `None` stays what it is. Raises RecursionError on data nested too deeply.
    """
    if value is None:
        return None
    origin = origin_of_path(path)
    if isinstance(value, str):
        return copied(value, origin)
    made: TrackedBool | TrackedInt | TrackedFloat | TrackedDict | TrackedList
    if isinstance(value, (list, tuple)):
        made = TrackedList([wrap(item, (*path, i)) for i, item in enumerate(value)])
    elif isinstance(value, (dict, Mapping)):  # the first is told apart faster
        made = TrackedDict()
        for key, item in value.items():
            below = (*path, key)
            made[_tracked_key(key, below)] = wrap(item, below)
    elif isinstance(value, bool):
        made = TrackedBool(value)
    elif isinstance(value, int):
        made = TrackedInt(value)
    elif isinstance(value, float):
        made = TrackedFloat(value)
    else:
        return value
    made._origin = origin
    return made


def _tracked_key(
    key: Any, path: tuple[str | int, ...]
) -> Any:  # Any: JSON keys, or what a caller's dict holds
    if not isinstance(key, str):
        return key
    return _usual_key(path) if len(key) < _USUAL_LENGTH else syntax(key, origin_of_path(path))


@lru_cache(maxsize=4096)
def _usual_key(path: tuple[str | int, ...]) -> TrackedStr:
    return syntax(str(path[-1]), origin_of_path(path))
