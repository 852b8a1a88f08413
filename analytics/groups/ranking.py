"""Groups in the order of one of their numbers, and only the first of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from tokscore.dataset.errors import UsageError, expected_name


class RankedRow(Protocol):
    """The numbers of a group."""

    def flat(self) -> Mapping[str, object]:
        """Numbers by dotted name; None where there is none."""


Row = TypeVar("Row", bound=RankedRow)


class Ranking:
    """An order of groups by one number."""

    def __init__(self, sort: str | None, top: int | None, names: Collection[str]) -> None:
        """Check what groups are ordered by.

        Args:
            sort: Dotted name of a number, largest first; with `-` before it smallest first. None keeps the
                order of the groups.
            top: How many to keep; None keeps all.
            names: Of all numbers that rows have.

        Raises:
            UsageError: There is no such number, with the one that was meant; or `top` is below 1.
        """
        self._name = None if sort is None else sort.removeprefix("-")
        self._is_rising = sort is not None and sort.startswith("-")
        self._top = top
        if top is not None and top < 1:
            raise UsageError(f"`top` is {top}; expected at least 1.")
        if self._name is not None and self._name not in names:
            raise UsageError(f"cannot sort by {self._name}; {expected_name(self._name, names)}")

    def apply(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The rows that are kept, in order; those without the number last, equal ones as they were."""
        if self._name is None:
            return tuple(rows[: self._top])
        numbers = [row.flat().get(self._name) for row in rows]
        keys = [float(each) if isinstance(each, int | float) else None for each in numbers]
        sign = 1.0 if self._is_rising else -1.0
        order = sorted(range(len(rows)), key=lambda i: (keys[i] is None, sign * (keys[i] or 0.0)))
        return tuple(rows[i] for i in order[: self._top])
