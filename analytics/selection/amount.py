"""How many conversations are kept, and which those are."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<percent>%?)")


class Amount(NamedTuple):
    """How many conversations are kept.

    Attributes:
        number: Of them, or percent.
        is_percent: Which.
    """

    number: float
    is_percent: bool

    def __str__(self) -> str:
        return f"{self.number:g}{'%' if self.is_percent else ''}"

    def of(self, n: int) -> int:
        """Out of `n`; a part of one counts as one."""
        return min(n, math.ceil(round(self.number * n / 100, 9)) if self.is_percent else int(self.number))


def parse_amount(text: str) -> Amount:
    """An amount such as `500` or `90%`.

    Raises:
        UsageError: It is none.
    """
    match = _SHARE.fullmatch(text.strip())
    number = float(match["number"]) if match else math.nan
    is_percent = bool(match and match["percent"])
    if not (number <= 100 if is_percent else number.is_integer()):
        raise UsageError(f"{text!r} is no amount; expected a number such as 500, or a share such as 90%.")
    return Amount(number, is_percent)


def first_ones(values: NDArray[np.generic], n_kept: int, *, is_top: bool) -> NDArray[np.bool_]:
    """Whether each value is among the largest or smallest; of equal ones the first are."""
    n_kept = min(n_kept, len(values))
    if not n_kept:
        return np.zeros(len(values), np.bool_)
    index = len(values) - n_kept if is_top else n_kept - 1
    threshold = np.partition(values, index)[index]
    is_kept: NDArray[np.bool_] = values > threshold if is_top else values < threshold
    ties = np.flatnonzero(values == threshold)
    is_kept[ties[: n_kept - int(is_kept.sum())]] = True
    return is_kept
