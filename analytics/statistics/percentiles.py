"""Percentiles of any number of values as they are, in two passes over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Values that agree in sign, exponent and 12 bits behind share a bin: a small part of them is held.
_SHIFT = 40


def percentiles(read: Callable[[], Iterable[FloatArray]], shares: Sequence[float]) -> list[float]:
    """The values that these shares of all values do not exceed, interpolated between neighbours.

    Memory holds the bins that are used, and the values in those that hold a percentile.

    Args:
        read: Gives the values in pieces, the same in every call; not NaN.
        shares: Each from 0, the least value, to 1, the largest.

    Returns:
        One value a share: of n sorted values, that at share * (n - 1), counted from 0. Empty without values.

    Source:
        Hyndman and Fan (1996), Sample Quantiles in Statistical Packages, definition 7.
    """
    counts: dict[int, int] = {}
    for values in read():
        bins, n = np.unique(_bins(values), return_counts=True)
        for key, more in zip(bins.tolist(), n.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + more
    n_values = sum(counts.values())
    if not n_values:
        return []
    bins = np.array(sorted(counts), np.int64)
    ends = np.cumsum([counts[key] for key in bins.tolist()])
    places = [share * (n_values - 1) for share in shares]
    ranks = sorted({rank for place in places for rank in (math.floor(place), math.ceil(place))})
    # Number of the bin that holds each rank, and the rank of its first value.
    indices = np.searchsorted(ends, ranks, side="right")
    wanted = bins[np.unique(indices)]
    held: dict[int, list[FloatArray]] = {key: [] for key in wanted.tolist()}
    for values in read():
        mine = _bins(values)
        for key in wanted.tolist():
            held[key].append(values[mine == key])
    found = {}
    for rank, index in zip(ranks, indices.tolist(), strict=True):
        first = int(ends[index]) - counts[int(bins[index])]
        found[rank] = (int(bins[index]), rank - first)
    ordered = {key: np.sort(np.concatenate(pieces)) for key, pieces in held.items()}
    at = {rank: float(ordered[key][place]) for rank, (key, place) in found.items()}
    return [_between(at[math.floor(place)], at[math.ceil(place)], place % 1) for place in places]


def _bins(values: FloatArray) -> NDArray[np.int64]:
    """Bins as whole numbers in the order of the values."""
    bits = (values + 0.0).view(np.int64)  # -0 becomes 0
    ordered = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return ordered >> _SHIFT


def _between(low: float, high: float, share: float) -> float:
    return low if low == high or not share else (1 - share) * low + share * high
