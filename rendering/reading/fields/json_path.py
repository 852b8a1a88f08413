"""Paths into JSON values, as `$.data.turns[0]`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tokscore.dataset.errors import UsageError

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


class _NoValue:
    """Says that there is no value; null is one."""


NO_VALUE: Final = _NoValue()


@lru_cache
def parse_path(path: str) -> tuple[str | int, ...]:
    """Keys and indices in order.

    Args:
        path: With or without `$.` at its beginning.

    Raises:
        UsageError: It is no path.
    """
    rest = path.removeprefix("$")
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            break
        steps.append(found[1] if found[2] is None else int(found[2]))
        at = found.end()
    if not steps or at < len(rest):
        raise UsageError(f"{path!r} is no path; expected keys and indices, such as $.data.turns[0].")
    return tuple(steps)


def is_path(key: str) -> bool:
    """Whether it is a path with `$`, not a key, which may hold any character."""
    return key.startswith("$")


def root_key(key: str) -> str:
    """The key of the record in which a path begins; a key itself."""
    return str(parse_path(key)[0]) if is_path(key) else key


def value_at(value: object, path: str) -> object:
    """The value at a path, `NO_VALUE` where there is none.

    Raises:
        UsageError: It is no path.
    """
    for step in parse_path(path):
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return NO_VALUE
            value = value[step]
        else:
            if not isinstance(value, dict) or step not in value:
                return NO_VALUE
            value = value[step]
    return value


def joined(base: str, path: str) -> str:
    """A path behind another."""
    return base + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in parse_path(path))
