"""The loop over token rows: what is counted of each group, in whole numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.compiled import compiled_if_long
from tokscore.analytics.divergence.topk import MAX_LOGPROB
from tokscore.analytics.statistics.sketches import FLOAT32_SHIFT

# Sums are taken in whole numbers of 2**-48 nats, in two parts that fit 64 bits for 2**35 tokens each.
COARSE, FINE = 2.0**20, 2.0**28

COUNTS = ("n_tokens", "n_content", "n_sampled", "n_sampled_unknown")
SCORE_COUNTS = (
    "n_without_logprob",
    "n_impossible",
    "n_ranked",
    "n_rank1",
    "n_without_entropy",
    "logprob_coarse",
    "logprob_fine",
    "entropy_coarse",
    "entropy_fine",
    "n_above_0",
)


@compiled_if_long
def count_tokens_into(
    codes: NDArray[np.int64],
    is_content: NDArray[np.uint8],
    is_sampled: NDArray[np.int8],
    counts: NDArray[np.int64],
) -> None:
    """Add rows to `counts` [groups, COUNTS]; `is_sampled` is -1 where it cannot be told."""
    for row in range(len(codes)):
        group = counts[codes[row]]
        group[0] += 1
        group[1] += is_content[row]
        group[2] += is_sampled[row] == 1
        group[3] += is_sampled[row] < 0


@compiled_if_long
def count_scores_into(
    codes: NDArray[np.int64],
    logprobs: NDArray[np.float32],
    ranks: NDArray[np.int32],
    entropies: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> None:
    """Add rows to `counts` [groups, SCORE_COUNTS]; NaN and rank 0 stand for nulls."""
    for row in range(len(codes)):
        group = counts[codes[row]]
        logprob, entropy = np.float64(logprobs[row]), np.float64(entropies[row])
        if np.isnan(logprob):
            group[0] += 1
        elif np.isinf(logprob):
            group[1] += 1
            group[9] += logprob > MAX_LOGPROB
        else:
            coarse = np.floor(logprob * COARSE)
            group[5] += np.int64(coarse)
            group[9] += logprob > MAX_LOGPROB
            group[6] += np.int64(np.rint((logprob * COARSE - coarse) * FINE))
        group[2] += ranks[row] > 0
        group[3] += ranks[row] == 1
        if np.isnan(entropy):
            group[4] += 1
        elif not np.isinf(entropy):
            coarse = np.floor(entropy * COARSE)
            group[7] += np.int64(coarse)
            group[8] += np.int64(np.rint((entropy * COARSE - coarse) * FINE))


@compiled_if_long
def count_bins_into(
    codes: NDArray[np.int64],
    values: NDArray[np.float32],
    bits: NDArray[np.int32],
    smallest: int,
    first: int,
    bins: NDArray[np.int64],
    limits: NDArray[np.float64],
) -> None:
    """Add values that are no NaN to `bins` [groups, bins] and `limits` [groups, 2].

    Args:
        codes: Group of each row.
        values: Counted, unless NaN.
        bits: The same memory.
        smallest: `sketches.FIRST_FLOAT32_BIN`.
        first: The first of the bins, as `sketches.float32_bins` gives it; every value must have one.
        bins: Counts.
        limits: Least and largest value.
    """
    for row in range(len(codes)):
        value = values[row]
        if np.isnan(value):
            continue
        key = max(((bits[row] & 0x7FFFFFFF) >> FLOAT32_SHIFT) - smallest + 1, 0)
        group = codes[row]
        bins[group, (-key if value < 0 else key) - first] += 1
        limits[group, 0] = min(limits[group, 0], value)
        limits[group, 1] = max(limits[group, 1], value)
