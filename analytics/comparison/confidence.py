"""Confidence limits of the means of a group, from its sums by conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.analytics.comparison.measures import interval_names, ranges
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.statistics.bootstrap import LARGEST, N_REPLICATES, Confidence, clustered_confidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.comparison.reduction import Clusters
    from tokscore.analytics.divergence.topk import FloatArray

# Groups with confidence limits; more are too many to look at, and each takes a bootstrap.
MAX_CONFIDENT_GROUPS = 200

# Means that are known exactly and may be of either sign.
POINTS = ("log_ratio", "delta_p")

ESTIMATES = ("k1", "k3", "topk")
# Columns of estimates: the number of tokens that they are of, and their sums over these.
N_ESTIMATED = "n_estimated"
ESTIMATE_COLUMNS = (N_ESTIMATED, *(f"estimate_{name}" for name in ESTIMATES))

_UNBOUNDED = ("kl_teacher_student", "kl_student_teacher")


class NamedConfidence(NamedTuple):
    """Confidence limits of one measure, from resampling whole conversations.

    Attributes:
        name: Of the measure, or of the estimate such as `estimate_k1`.
        lower: Of its lower limit, not below what the measure may be; None where the conversations set none.
        upper: Of its upper limit, not above what it may be; None likewise, or where a token has none.
        p_value: Of "the mean is 0"; only of `log_ratio` and `delta_p`. A divergence is above 0 wherever the
            models differ at all, so that such a test of one says nothing.
        adjusted_p_value: The same, adjusted for all groups of the report (Benjamini-Hochberg).
        n_conversations: With tokens.
        is_rough: There are too few, below 30, for the level of 95 % to be trusted.
    """

    name: str
    lower: float | None
    upper: float | None
    p_value: float | None
    adjusted_p_value: float | None
    n_conversations: int
    is_rough: bool

    def to_dict(self) -> dict[str, object]:
        """For JSON: a measure without a test has no p-values."""
        untested = () if self.name in POINTS else ("p_value", "adjusted_p_value")
        return {name: value for name, value in self._asdict().items() if name not in ("name", *untested)}


def kept_names(alphas: Sequence[float], *, with_estimates: bool = False) -> list[str]:
    """Columns whose sums are kept by conversation: the log-ratio first, and what confidence limits need."""
    names = [name for name in interval_names(alphas) if not name.startswith("entropy")]
    limits = [f"{name}.{end}" for name in names for end in ("lower", "upper")]
    unbounded = [f"n_unbounded_{name}" for name in _UNBOUNDED]
    return [*POINTS, *limits, *unbounded, *(ESTIMATE_COLUMNS if with_estimates else ())]


def confidence_of(
    clusters: Clusters,
    alphas: Sequence[float],
    n_replicates: int = N_REPLICATES,
    *,
    with_estimates: bool = False,
) -> list[tuple[str, Confidence]]:
    """Confidence limits of every measure of a gap in one group, by name, within the range of the measure.

    Branches of a conversation share tokens, so that they are drawn together.

    Args:
        clusters: Sums of `kept_names`.
        alphas: Weights of the teacher.
        n_replicates: Of the bootstrap.
        with_estimates: Whether there are sums of estimates; their limits come last.
    """
    sums, n_tokens = _by_conversation(clusters)
    if not len(n_tokens):
        return []
    columns = dict(zip(kept_names(alphas, with_estimates=with_estimates), sums, strict=True))
    names = [*POINTS, *(name.removesuffix(".lower") for name in columns if name.endswith(".lower"))]
    lower = np.stack([columns[name if name in POINTS else f"{name}.lower"] for name in names])
    upper = np.stack([columns[name if name in POINTS else f"{name}.upper"] for name in names])
    for name in _UNBOUNDED:
        upper[names.index(name), columns[f"n_unbounded_{name}"] > 0] = np.inf
    # A sum that is infinite, as a log-ratio may be, has no limits.
    certain = [index for index, row in enumerate(lower) if (np.abs(row) <= LARGEST).all()]
    upper[np.abs(upper) > LARGEST] = np.inf
    found = clustered_confidence(
        [names[index] for index in certain],
        lower[certain],
        n_tokens,
        upper[certain],
        n_replicates=n_replicates,
    )
    none = Confidence(None, None, None, int(np.count_nonzero(n_tokens)))
    by_name = dict.fromkeys(names, none) | dict(zip((names[i] for i in certain), found, strict=True))
    possible = ranges(alphas)
    limits = [
        (name, _within(each, *possible[name]) if name in possible else each) for name, each in by_name.items()
    ]
    if with_estimates:
        n_estimated = columns[N_ESTIMATED].astype(np.int64)
        estimates = {name: columns[name] for name in ESTIMATE_COLUMNS[1:]}
        # A KL is never below 0, but what is no estimate of one may be, and should be seen to be.
        limits += _of_means(estimates, n_estimated, n_replicates, {"estimate_k3": (0.0, math.inf)})
    return limits


def confidence_of_means(
    names: Sequence[str],
    clusters: Clusters,
    alphas: Sequence[float],
    n_replicates: int = N_REPLICATES,
) -> tuple[NamedConfidence, ...]:
    """Confidence limits of means that are known exactly; none of those with a sum beyond `LARGEST`.

    Args:
        names: Of the sums, as in `measures.ranges`.
        clusters: Their sums, inf where a token's value is.
        alphas: Weights of the teacher.
        n_replicates: Of the bootstrap.
    """
    sums, n_tokens = _by_conversation(clusters)
    if not len(n_tokens):
        return ()
    found = _of_means(dict(zip(names, sums, strict=True)), n_tokens, n_replicates, ranges(alphas))
    return tuple(
        NamedConfidence(name, each.lower, each.upper, None, None, each.n_conversations, each.is_rough)
        for name, each in found
    )


def _by_conversation(clusters: Clusters) -> tuple[FloatArray, NDArray[np.int64]]:
    """Sums [columns, conversations] and tokens of conversations, all branches of one together."""
    starts, at = [], 0
    for _, branches in groupby(clusters.names, key=lambda name: name[0]):
        starts.append(at)
        at += sum(1 for _ in branches)
    if not starts:
        return clusters.sums[:0].T, clusters.n_tokens[:0]
    return np.add.reduceat(clusters.sums, starts, axis=0).T, np.add.reduceat(clusters.n_tokens, starts)


def _of_means(
    sums: Mapping[str, FloatArray],
    n_tokens: NDArray[np.int64],
    n_replicates: int,
    possible: Mapping[str, tuple[float, float]],
) -> list[tuple[str, Confidence]]:
    certain = [name for name, column in sums.items() if (np.abs(column) <= LARGEST).all()]
    columns = np.stack([sums[name] for name in certain]) if certain else np.zeros((0, len(n_tokens)))
    found = clustered_confidence(certain, columns, n_tokens, n_replicates=n_replicates)
    none = Confidence(None, None, None, int(np.count_nonzero(n_tokens)))
    limits = dict.fromkeys(sums, none)
    for name, each in zip(certain, found, strict=True):
        limits[name] = _within(each, *possible[name]) if name in possible else each
    return list(limits.items())


def _within(limits: Confidence, least: float, largest: float) -> Confidence:
    """The limits, cut to what is possible; where conversations set none, that is the limit."""
    if limits.n_conversations < 2:
        return limits
    lower = least if limits.lower is None else max(least, limits.lower)
    upper = largest if limits.upper is None else min(largest, limits.upper)
    return limits._replace(lower=lower, upper=finite(upper))
