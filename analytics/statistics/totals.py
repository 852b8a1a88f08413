"""Sums that do not depend on the order of their terms, so that sharding never changes a number."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class ExactTotals:
    """Totals of several columns for any number of groups, without rounding until they are read.

    A term below 2**-256 counts as 0 and what a term has below that is cut off; one of 2**500 or more makes
    its total infinite.
    """

    def __init__(self, n_columns: int) -> None:
        from tokscore.analytics.statistics.cells import N_DIGITS

        self._digits = np.zeros((0, n_columns, N_DIGITS), np.int64)
        self._n_infinite = np.zeros((0, n_columns), np.int64)

    def add(self, sums: NDArray[np.float64], groups: NDArray[np.int64]) -> None:
        """Add a row of terms, shape [terms, columns], to the group of each; new groups start at 0."""
        from tokscore.analytics.statistics.cells import add_exactly

        self._grow(int(groups.max(initial=-1)) + 1)
        add_exactly(np.ascontiguousarray(sums), groups, self._digits, self._n_infinite)

    def value(self, group: int) -> list[float]:
        """The totals of one group, each rounded once."""
        from tokscore.analytics.statistics.cells import OFFSET

        if group >= len(self._digits):
            return [0.0] * self._digits.shape[1]
        totals = []
        for digits, n_infinite in zip(
            self._digits[group].tolist(), self._n_infinite[group].tolist(), strict=True
        ):
            whole = sum(digit << (32 * index) for index, digit in enumerate(digits))
            totals.append(math.inf if n_infinite else whole / (1 << OFFSET))
        return totals

    def _grow(self, n_groups: int) -> None:
        n_more = n_groups - len(self._digits)
        if n_more > 0:
            # Doubled, so that groups that come one by one are not copied every time.
            n_more = max(n_more, len(self._digits))
            self._digits = _longer(self._digits, n_more)
            self._n_infinite = _longer(self._n_infinite, n_more)


def _longer(array: NDArray[np.int64], n_more: int) -> NDArray[np.int64]:
    return np.concatenate([array, np.zeros((n_more, *array.shape[1:]), np.int64)])
