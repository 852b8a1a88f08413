"""Confidence limits of the numbers of a mismatch, from resampling conversations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokscore.analytics.comparison.confidence import blank_confidence, by_conversation, limits_of_means
from tokscore.analytics.comparison.off_policy import effective_sample_size
from tokscore.analytics.comparison.reduction import NO_TOKENS
from tokscore.analytics.recorded.rows import K1, K3, N_SAMPLED, row_of
from tokscore.analytics.statistics.bootstrap import N_REPLICATES, Confidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.comparison.reduction import Clusters
    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.dataset.choices import RecordedAgainst

_OTHER = "other_logprob"
# The column that each number is the mean of, and the least and largest value that it may have.
_MEANS: Mapping[str, tuple[str, float, float]] = {
    "recorded_logprob": ("recorded_logprob", -math.inf, 0.0),
    _OTHER: ("other_logprob", -math.inf, 0.0),
    "log_ratio": ("log_ratio", -math.inf, math.inf),
    "mean_abs_log_ratio": ("abs_log_ratio", 0.0, math.inf),
    "mean_ratio": ("ratio", 0.0, math.inf),
    "chi2": ("squared_ratio", 0.0, math.inf),
    "outside_0_9_1_1": ("n_outside_0.9_1.1", 0.0, 1.0),
    "outside_0_5_2": ("n_outside_0.5_2", 0.0, 1.0),
    "clipped_low": ("n_clipped_low", 0.0, 1.0),
    "clipped_high": ("n_clipped_high", 0.0, 1.0),
}
_ESS = "effective_sample_size"
_LIMITED = (*_MEANS, _ESS, K1, K3)
KEPT = (*(column for column, *_ in _MEANS.values()), N_SAMPLED, K1, K3)


def limited_numbers(against: RecordedAgainst) -> list[str]:
    """Names of the numbers that have confidence limits."""
    return [f"{against}_logprob" if name == _OTHER else name for name in _LIMITED]


def mismatch_confidence(
    clusters: Clusters, against: RecordedAgainst, n_replicates: int = N_REPLICATES
) -> list[tuple[str, Confidence]]:
    """Limits of the numbers of one group, by name; `clusters` holds sums of `KEPT`."""
    columns, n_tokens = by_conversation(clusters, N_SAMPLED)
    if not len(n_tokens):
        return []
    sums = {name: columns[column] for name, (column, *_) in _MEANS.items()}
    weights = _ess_sums(columns["ratio"], columns["squared_ratio"], n_tokens)
    possible = {name: (least, largest) for name, (_, least, largest) in _MEANS.items()} | {_ESS: (0.0, 1.0)}
    found = dict(limits_of_means(sums | {_ESS: weights}, n_tokens, n_replicates, possible))
    found["chi2"] = _less_one(found["chi2"])
    n_sampled = columns[N_SAMPLED].astype(np.int64)
    estimates = {name: columns[name] for name in (K1, K3)}
    # A KL is never below 0, but what is no estimate of one may be, and should be seen to be.
    found |= limits_of_means(estimates, n_sampled, n_replicates, {K3: (0.0, math.inf)})
    return [*zip(limited_numbers(against), (found[name] for name in _LIMITED), strict=True)]


def _less_one(limits: Confidence) -> Confidence:
    lower, upper = (None if limit is None else limit - 1.0 for limit in (limits.lower, limits.upper))
    return limits._replace(lower=lower, upper=upper)


def _ess_sums(weights: FloatArray, squares: FloatArray, n_tokens: NDArray[np.int64]) -> FloatArray:
    """Sums by conversation whose mean per token is the effective sample size, and varies as it does.

    They are E n (2 a / A - b / B): less E per token that is the linearised influence of a conversation on
    E = A^2 / (n B), with A the sum of all weights, B that of their squares, and a and b its own.

    Source:
        Davison and Hinkley (1997), Bootstrap Methods and their Application, section 2.7.
    """
    total, squared = math.fsum(weights), math.fsum(squares)
    share = effective_sample_size(total, squared, int(n_tokens.sum()))
    if share is None or not math.isfinite(total):
        return np.full(len(n_tokens), np.inf)
    return share * float(n_tokens.sum()) * (2.0 * weights / total - squares / squared)


def metric_names(against: RecordedAgainst) -> tuple[str, ...]:
    """Dotted names of all numbers of a row that has confidence limits."""
    row = replace(row_of(None, NO_TOKENS, against), confidence=blank_confidence(limited_numbers(against)))
    return tuple(row.flat())
