"""Closed sets of strings, as a caller names their members."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from tokscore.dataset.errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def choose(choices: type[Choice], value: str, name: str) -> Choice:
    """The member of `choices` called `value`.

    Args:
        choices: All that may be chosen.
        value: A member, or its text.
        name: Of the setting, for the message.

    Raises:
        UsageError: There is no such member.
    """
    try:
        return choices(value)
    except ValueError:
        raise UsageError(f"{name} is {value!r}; expected {', '.join(choices)}.") from None


class OnError(StrEnum):
    """What one bad conversation does to a run."""

    FAIL = "fail"  # ends it
    SKIP = "skip"  # is listed in errors/
