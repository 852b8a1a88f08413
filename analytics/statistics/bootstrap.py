"""How sure a mean per token is: intervals that resample whole conversations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import InputError, UsageError, counted

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.integer]

N_ROUGH = 30
N_REPLICATES = 999

# More conversations than twice this are put into as many random bags. Sums of bags have the
# variance and the third moment of sums of conversations; the error that bags add to the standard
# error, 1 in sqrt(2 * 4096), is a fifth of what 999 replicates leave in a limit.
MAX_CLUSTERS = 4096
_BLOCK = 256  # replicates at a time
LARGEST = 1e150  # squares of sums must stay below the largest float64


class Confidence(NamedTuple):
    """Limits of the mean of one statistic per token, and whether it is 0.

    Attributes:
        lower: Lower confidence limit; None where the conversations set none.
        upper: Upper confidence limit; None where they set none, or where a sum is infinite.
        p_value: Of "the mean is 0", or of "the interval contains 0" where a mean is known as an
            interval, two-sided; at least 2 / (replicates + 1). None below two conversations.
        n_conversations: Conversations with tokens.
    """

    lower: float | None
    upper: float | None
    p_value: float | None
    n_conversations: int

    @property
    def is_rough(self) -> bool:
        """Whether there are too few conversations for the level to be trusted."""
        return self.n_conversations < N_ROUGH


class _Tails(NamedTuple):
    """One row of sums against its replicates.

    Attributes:
        lower: Lower confidence limit, -inf where there is none.
        upper: Upper confidence limit, inf where there is none.
        p_above: One-sided p-value of "the mean is at most 0".
        p_below: Of "the mean is at least 0".
    """

    lower: float
    upper: float
    p_above: float
    p_below: float


def clustered_confidence(
    names: Sequence[str],
    lower_sums: FloatArray,
    n_tokens: IntArray,
    upper_sums: FloatArray | None = None,
    *,
    level: float = 0.95,
    n_replicates: int = N_REPLICATES,
    seed: int = 0,
) -> tuple[Confidence, ...]:
    """Confidence limits of means per token, where the tokens of a conversation go together.

    Each mean is sum(sums) / sum(n_tokens). Conversations are drawn again with Poisson(1) weights,
    and every replicate is divided by its own standard error (bootstrap-t), so that the limits
    follow the skewness of the sums. Of means known as intervals [L, U], the limits are the lower
    one of L and the upper one of U. Order and grouping of the conversations into parts change nothing.

    Args:
        names: What is summed, for messages, one per statistic.
        lower_sums: Sum over the tokens of each conversation, shape [statistics, conversations];
            finite.
        n_tokens: Tokens of each conversation, shape [conversations]. Conversations without any
            count for nothing.
        upper_sums: Sums of the upper ends, same shape, where `lower_sums` are those of the lower
            ends; inf where a token has no upper limit. None if both ends are the same.
        level: Share of repetitions in which the limits should contain the mean.
        n_replicates: At least 2 / (1 - level) - 1. See `multiplicity.replicates_for`.
        seed: Of the weights.

    Returns:
        One per statistic. Limits and p-value are None below two conversations.

    Raises:
        UsageError: `level` or `n_replicates` is out of range.
        InputError: Shapes differ; a sum is NaN, infinite where it may not be, or beyond 1e150; an
            upper sum is below its lower one; a count is negative, or 0 beside a sum.

    Source:
        Davison and Hinkley (1997), Bootstrap Methods and their Application, sections 2.4, 4.4 and
        5.2. Ratio and its variance by linearisation: Cochran (1977), Sampling Techniques, 6.4.
        Poisson weights: Hanley and MacGibbon (2006).
    """
    n_tail = _n_tail(level, n_replicates)
    n_tokens = np.asarray(n_tokens)
    lows = _checked(names, lower_sums, n_tokens)
    ups = None if upper_sums is None else _checked(names, upper_sums, n_tokens, may_be_unlimited=True)
    if ups is not None and (ups < lows).any():
        row, column = np.argwhere(ups < lows)[0]
        raise InputError(
            f"{names[row]}, conversation {column}: the upper sum {ups[row, column]:g} is below the "
            f"lower one, {lows[row, column]:g}; expected it to be at least as large."
        )
    held = n_tokens > 0
    n_conversations = int(np.count_nonzero(held))
    if n_conversations < 2:
        return tuple(Confidence(None, None, None, n_conversations) for _ in names)
    rows = lows if ups is None else np.concatenate([lows, np.where(np.isinf(ups), 0.0, ups)])
    tails = _tails(rows[:, held], n_tokens[held].astype(np.float64), n_tail, n_replicates, seed)
    below, above = tails[: len(names)], tails[-len(names) :] if names else []
    unlimited = np.zeros(len(names), bool) if ups is None else np.asarray(np.isinf(ups).any(axis=1))
    return tuple(
        _confidence(low, up, bool(is_unlimited), n_conversations)
        for low, up, is_unlimited in zip(below, above, unlimited, strict=True)
    )


def _confidence(low: _Tails, up: _Tails, is_unlimited: bool, n_conversations: int) -> Confidence:
    upper = None if is_unlimited or math.isinf(up.upper) else up.upper
    p_value = min(1.0, 2.0 * min(low.p_above, 1.0 if is_unlimited else up.p_below))
    return Confidence(None if math.isinf(low.lower) else low.lower, upper, p_value, n_conversations)


def _tails(sums: FloatArray, n_tokens: FloatArray, n_tail: int, n_replicates: int, seed: int) -> list[_Tails]:
    """Limits and p-values of each row, shape [rows, conversations]."""
    total = float(n_tokens.sum())
    means = [math.fsum(row) / total for row in sums]
    clusters = [_clusters(row, mean, n_tokens) for row, mean in zip(sums, means, strict=True)]
    scales = [float(np.abs(cluster[0]).max()) for cluster in clusters]
    uncertain = [row for row, scale in enumerate(scales) if scale > 0]
    tails = [_certain(mean, n_replicates) for mean in means]
    if uncertain:
        deviations = np.stack([clusters[row][0] / scales[row] for row in uncertain])
        sizes = np.stack([clusters[row][1] for row in uncertain])
        n = deviations.shape[1]
        errors = np.sqrt((deviations**2).sum(axis=1) * (n / (n - 1))) / total
        ratios = _studentised(deviations, sizes, n_replicates, seed)
        for row, error, replicates in zip(uncertain, errors.tolist(), ratios, strict=True):
            tails[row] = _tail(means[row], error * scales[row], replicates, n_tail)
    return tails


class _Clusters(NamedTuple):
    """The units that are resampled, shape [clusters]: conversations, or bags of them.

    Attributes:
        deviations: Sum less what the mean would make it.
        sizes: Tokens.
    """

    deviations: FloatArray
    sizes: FloatArray


def _clusters(sums: FloatArray, mean: float, n_tokens: FloatArray) -> _Clusters:
    """Clusters in an order that their own values give; adding to every token, or another unit, keeps it."""
    expected = mean * n_tokens
    deviations = sums - expected
    # What rounding leaves where every conversation has the same mean is no deviation.
    deviations[np.abs(deviations) <= 2.0**-49 * np.maximum(np.abs(sums), np.abs(expected))] = 0.0
    # Conversations alike in both may stand either way round, so lexsort, twice as slow, is not needed.
    order = np.argsort(sums)
    order = order[np.argsort(n_tokens[order], kind="stable")]
    deviations, sizes = deviations[order], n_tokens[order]
    if sizes.size > 2 * MAX_CLUSTERS:
        bags = np.random.default_rng(sizes.size).permutation(sizes.size) % MAX_CLUSTERS
        deviations = np.bincount(bags, deviations).astype(np.float64)
        sizes = np.bincount(bags, sizes).astype(np.float64)
    return _Clusters(deviations, sizes)


def _certain(mean: float, n_replicates: int) -> _Tails:
    """Every conversation has this mean."""
    least = 1.0 / (n_replicates + 1)
    return _Tails(mean, mean, least if mean > 0 else 1.0, least if mean < 0 else 1.0)


def _tail(mean: float, error: float, ratios: FloatArray, n_tail: int) -> _Tails:
    """Limits and p-values that agree: a limit is past 0 exactly where its p-value is small enough."""
    # A replicate that says nothing counts against both limits.
    high = np.sort(np.where(np.isnan(ratios), np.inf, ratios))
    low = np.sort(np.where(np.isnan(ratios), -np.inf, ratios))
    n_replicates, observed = len(ratios), mean / error
    n_above = n_replicates - int(np.searchsorted(high, observed, side="left"))
    n_below = int(np.searchsorted(low, observed, side="right"))
    return _Tails(
        min(mean, mean - error * float(high[n_replicates - n_tail])),
        max(mean, mean - error * float(low[n_tail - 1])),
        (1 + n_above) / (n_replicates + 1),
        (1 + n_below) / (n_replicates + 1),
    )


def _studentised(deviations: FloatArray, sizes: FloatArray, n_replicates: int, seed: int) -> FloatArray:
    """Replicates of (mean* - mean) / error*, shape [rows, replicates]; NaN for 0 / 0.

    Weighted sums of five products give every replicate's mean and standard error.
    """
    n_rows, n = deviations.shape
    sizes = sizes / sizes.max(axis=1, keepdims=True)
    products = np.concatenate([deviations, sizes, deviations**2, deviations * sizes, sizes**2])
    ratios = np.empty((n_rows, n_replicates))
    for block, start in enumerate(range(0, n_replicates, _BLOCK)):
        stop = min(start + _BLOCK, n_replicates)
        weights = _weights(seed, block, 1 << (n - 1).bit_length())[: stop - start, :n]
        sums, total, squared, crossed, squares = np.split(products @ weights.T.astype(np.float64), 5)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = sums / total
            variance = squared - 2 * gap * crossed + gap**2 * squares
            # Less is what rounding leaves where one conversation, or none that differ, was drawn.
            variance[variance <= 1e-13 * (squared + gap**2 * squares)] = 0.0
            ratios[:, start:stop] = sums / np.sqrt(variance * (n / (n - 1)))
    return ratios


@lru_cache(maxsize=32)
def _weights(seed: int, block: int, n_columns: int) -> NDArray[np.uint8]:
    """How often each cluster is drawn, shape [replicates, clusters]; groups share them."""
    rng = np.random.default_rng([seed, block, n_columns])
    weights = rng.poisson(1.0, (_BLOCK, n_columns)).astype(np.uint8)
    weights.flags.writeable = False
    return weights


def _n_tail(level: float, n_replicates: int) -> int:
    if not 0.0 < level < 1.0:
        raise UsageError(f"level is {level}; expected a number between 0 and 1, such as 0.95.")
    # The little more is for levels that binary fractions miss: 1000 * (1 - 0.95) / 2 is below 25.
    n_tail = math.floor((n_replicates + 1) * (1.0 - level) / 2.0 + 1e-9)
    if n_tail < 1:
        least = math.ceil(2.0 / (1.0 - level) - 1e-9) - 1
        raise UsageError(f"{counted(n_replicates, 'replicate')}; level {level} needs at least {least}.")
    return n_tail


def _checked(
    names: Sequence[str], sums: FloatArray, n_tokens: IntArray, *, may_be_unlimited: bool = False
) -> FloatArray:
    """The sums as float64, once they can be used."""
    sums = np.asarray(sums, np.float64)
    if n_tokens.ndim != 1 or n_tokens.dtype.kind not in "iu":
        raise InputError(
            f"n_tokens is {n_tokens.dtype} of shape {n_tokens.shape}; "
            "expected whole numbers, one a conversation."
        )
    if sums.shape != (len(names), len(n_tokens)):
        raise InputError(
            f"sums have shape {sums.shape}; expected [statistics, conversations], "
            f"here {(len(names), len(n_tokens))}."
        )
    if (n_tokens < 0).any():
        column = int(np.argmax(n_tokens < 0))
        raise InputError(f"conversation {column} has {n_tokens[column]} tokens; expected 0 or more.")
    usable = np.abs(sums) <= LARGEST
    if may_be_unlimited:
        usable |= np.isposinf(sums)
    empty = (n_tokens == 0) & (sums != 0)
    if not usable.all():
        row, column = np.argwhere(~usable)[0]
        raise InputError(
            f"{names[row]}, conversation {column}: the sum is {sums[row, column]:g}; "
            f"expected a number of at most {LARGEST:g} in size."
        )
    if empty.any():
        row, column = np.argwhere(empty)[0]
        raise InputError(
            f"{names[row]}, conversation {column}: the sum of no tokens is {sums[row, column]:g}; expected 0."
        )
    return sums
