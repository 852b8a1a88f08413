"""Sums over cells of tokens, and their exact totals; compiled."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.compiled import compiled

# A total is a whole number of 2**-OFFSET, in digits of 32 bits that are carried only when it is read.
OFFSET = 256
N_DIGITS = 24
_MAX_EXPONENT = 500
_DIGIT = (1 << 32) - 1


@compiled
def add_to_cells(values: NDArray[np.float64], cells: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
    """Add values of shape [columns, tokens] to the sums [cells, columns], in the order of the tokens."""
    for column in range(values.shape[0]):
        for token in range(len(cells)):
            sums[cells[token], column] += values[column, token]


@compiled
def add_exactly(
    sums: NDArray[np.float64],
    groups: NDArray[np.int64],
    digits: NDArray[np.int64],
    n_infinite: NDArray[np.int64],
) -> None:
    """Add sums of shape [cells, columns] to the totals of their groups.

    Args:
        sums: Not NaN.
        groups: Index of the group of each cell.
        digits: Shape [groups, columns, N_DIGITS].
        n_infinite: Counts sums of 2**500 and more, shape [groups, columns].
    """
    for cell in range(len(groups)):
        for column in range(sums.shape[1]):
            value = sums[cell, column]
            if value == 0.0:
                continue
            size = abs(value)
            mantissa, exponent = math.frexp(size)
            if not size < np.inf or exponent > _MAX_EXPONENT:
                n_infinite[groups[cell], column] += 1
                continue
            whole = np.int64(mantissa * 9007199254740992.0)  # 2**53
            shift = exponent - 53 + OFFSET
            if shift < 0:
                whole >>= min(-shift, 60)
                shift = 0
            digit, bit = shift >> 5, shift & 31
            low, high = (whole & _DIGIT) << bit, (whole >> 32) << bit
            sign = 1 if value > 0 else -1
            digits[groups[cell], column, digit] += sign * (low & _DIGIT)
            digits[groups[cell], column, digit + 1] += sign * ((low >> 32) + (high & _DIGIT))
            digits[groups[cell], column, digit + 2] += sign * (high >> 32)
