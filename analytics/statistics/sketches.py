"""Percentiles of any number of values in flat memory, the same for every order and division of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import InputError, UsageError

FloatArray = NDArray[np.float64]

# A bin is what float64 values share that agree in sign, exponent and so many bits behind.
_MANTISSA_BITS = 9
_SHIFT = 52 - _MANTISSA_BITS
RELATIVE_ERROR = 2.0 ** -(_MANTISSA_BITS + 1)
ABSOLUTE_ERROR = 2.0**-30
_FIRST = int(np.float64(ABSOLUTE_ERROR).view(np.int64)) >> _SHIFT

# The same bins from the bits of float32 values, and the number of bins on each side of 0.
FLOAT32_SHIFT = 23 - _MANTISSA_BITS
FIRST_FLOAT32_BIN = int(np.float32(ABSOLUTE_ERROR).view(np.int32)) >> FLOAT32_SHIFT
N_FLOAT32_BINS = (0x7F800000 >> FLOAT32_SHIFT) - FIRST_FLOAT32_BIN + 1

# Bins that may wait, beside four times those that are in use.
_MIN_PENDING = 1_024


class QuantileSketch:
    """Counts of values in fixed bins.

    A quantile is off by at most 0.1 % of its size (`RELATIVE_ERROR`), and below 1e-9
    (`ABSOLUTE_ERROR`) in size reads as 0; the least and the largest value are exact. Up to 1,024
    bins of 16 bytes per power of 2 from 2**-30 on, most of them never used.
    """

    __slots__ = ("_counts", "_keys", "_n_pending", "_pending", "maximum", "minimum", "n")

    def __init__(self) -> None:
        self.n = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._keys: NDArray[np.int32] = np.empty(0, np.int32)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)
        # Bins in order with their counts, not counted in yet.
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._n_pending = 0

    def add(self, values: FloatArray | NDArray[np.float32]) -> None:
        """Count values, infinite ones too.

        Raises:
            InputError: One is NaN.
        """
        if not len(values):
            return
        values = np.asarray(values, np.float64)
        if np.isnan(values).any():
            raise InputError(
                f"value {int(np.argmax(np.isnan(values)))} of {len(values)} is NaN; expected a number."
            )
        self.n += len(values)
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        keys = _keys(values)
        first = int(keys.min())
        self._insert(*_used_bins(np.bincount(keys - first), first))

    def add_float32_bins(self, bins: NDArray[np.int64], first: int, minimum: float, maximum: float) -> None:
        """Count float32 values that were put in bins already.

        Args:
            bins: Counts of neighbouring bins, in the order of the values.
            first: The first of them, as `float32_bins` gives it.
            minimum: The least value; above `maximum` where there is none.
            maximum: The largest.
        """
        if minimum > maximum:
            return
        keys, counts = _used_bins(bins, first)
        # Infinity has other bits as float64.
        keys[keys == N_FLOAT32_BINS], keys[keys == -N_FLOAT32_BINS] = _INFINITY, -_INFINITY
        self.n += int(counts.sum())
        self.minimum = min(self.minimum, minimum)
        self.maximum = max(self.maximum, maximum)
        self._insert(keys, counts)

    def merge(self, other: QuantileSketch) -> None:
        """Count what `other` has counted."""
        other._settle()
        self.n += other.n
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self._insert(other._keys, other._counts)

    def quantile(self, share: float) -> float | None:
        """The least value that at least this share of all values does not exceed; None without values.

        Raises:
            UsageError: `share` is not between 0 and 1.
        """
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"the share of a quantile is {share}; expected 0 to 1.")
        if not self.n:
            return None
        self._settle()
        # A share such as 0.07 of 100 is 7 values, not the 8 that its binary fraction asks for.
        rank = max(1, math.ceil(share * self.n * (1 - 2.0**-50)))
        if rank == 1:
            return self.minimum
        if rank == self.n:
            return self.maximum
        key = int(self._keys[np.searchsorted(np.cumsum(self._counts), rank)])
        return min(max(_middle(key), self.minimum), self.maximum)

    def _insert(self, keys: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
        if not len(keys):
            return
        self._pending.append((keys, counts))
        self._n_pending += len(keys)
        if self._n_pending >= _MIN_PENDING + 4 * len(self._keys):
            self._settle()

    def _settle(self) -> None:
        if not self._pending:
            return
        pending = [(self._keys, self._counts), *self._pending] if len(self._keys) else self._pending
        self._pending, self._n_pending = [], 0
        if len(pending) == 1:
            self._keys, self._counts = pending[0]
            return
        first = min(int(keys[0]) for keys, _ in pending)
        last = max(int(keys[-1]) for keys, _ in pending)
        sums = np.zeros(last - first + 1, np.int64)
        for keys, counts in pending:
            sums[keys - first] += counts
        self._keys, self._counts = _used_bins(sums, first)


def _used_bins(counts: NDArray[np.int64], first: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Of neighbouring bins those with values, in order, and how many."""
    used = np.flatnonzero(counts)
    return (used + first).astype(np.int32), counts[used]


def float32_bins(minimum: float, maximum: float) -> tuple[int, int]:
    """The first and the last bin that float32 values between two others can be in; 0 is the bin of 0."""
    first, last = (
        _keys(np.array([minimum, maximum], np.float64)).clip(-N_FLOAT32_BINS, N_FLOAT32_BINS).tolist()
    )
    return first, last


def _keys(values: FloatArray) -> NDArray[np.int32]:
    """Bins as whole numbers in the order of the values, 0 for those next to 0."""
    sizes = (np.abs(values).view(np.int64) >> _SHIFT) - _FIRST + 1
    keys: NDArray[np.int32] = np.where(values < 0, -1, 1) * np.maximum(sizes, 0)
    return keys.astype(np.int32)


def _middle(key: int) -> float:
    if not key:
        return 0.0
    first = abs(key) + _FIRST - 1
    start = float(np.int64(first << _SHIFT).view(np.float64))
    stop = float(np.int64((first + 1) << _SHIFT).view(np.float64))
    return math.copysign(start if math.isinf(start) else start / 2 + stop / 2, key)


_INFINITY = int(_keys(np.array([np.inf]))[0])
