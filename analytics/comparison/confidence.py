"""Confidence limits of the means of a group, from its sums by conversation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.divergence.measures import gaps
from tokscore.analytics.statistics.bootstrap import LARGEST, N_REPLICATES, Confidence, clustered_confidence
from tokscore.analytics.statistics.copies import copies_together
from tokscore.analytics.statistics.multiplicity import benjamini_hochberg
from tokscore.dataset.errors import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.comparison.reduction import Clusters
    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.analytics.groups.grouping import Grouping

# Groups with confidence limits; more are too many to look at, and each takes a bootstrap.
MAX_CONFIDENT_GROUPS = 200

ESTIMATES = ("k1", "k3", "topk")
# Columns of estimates: the number of tokens that they are of, and their sums over these.
N_ESTIMATED = "n_estimated"
ESTIMATE_COLUMNS = (N_ESTIMATED, *(f"estimate_{name}" for name in ESTIMATES))


class NamedConfidence(NamedTuple):
    """Confidence limits of one measure, from resampling whole conversations.

    Attributes:
        name: Of the measure, or of the estimate such as `estimate_k1`.
        lower: Of its lower limit, not below what the measure may be; None where the conversations set none.
        upper: Of its upper limit, not above what it may be; None likewise, or where a token has none.
        p_value: Of "the mean is 0"; only of measures of either sign: `log_ratio` and `delta_p`. A divergence
            is above 0 wherever the models differ at all, so that such a test of one says nothing.
        adjusted_p_value: The same, adjusted for all groups of the report (Benjamini-Hochberg).
        n_conversations: With tokens; copies of tokens that were not sampled count once.
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
        untested = () if self.name in tested() else ("p_value", "adjusted_p_value")
        return {name: value for name, value in self._asdict().items() if name not in ("name", *untested)}


def blank_confidence(names: Iterable[str]) -> tuple[NamedConfidence, ...]:
    """What says which numbers there will be."""
    return tuple(NamedConfidence(name, None, None, None, None, 0, True) for name in names)


def tested() -> list[str]:
    """Measures that are tested for a mean of 0: those of either sign, which are known exactly."""
    return [row.name for row in gaps(()) if row.range[0] < 0 and not row.is_interval]


def kept_names(alphas: Sequence[float], *, with_estimates: bool = False) -> list[str]:
    """Columns whose sums are kept by conversation, for confidence limits."""
    measures = gaps(alphas)
    columns = [name for row in measures for name in row.columns]
    unbounded = [f"n_unbounded_{row.name}" for row in measures if row.may_be_unbounded]
    return [*columns, *unbounded, *(ESTIMATE_COLUMNS if with_estimates else ())]


def confidence_of(
    clusters: Clusters,
    alphas: Sequence[float],
    n_replicates: int = N_REPLICATES,
    *,
    with_estimates: bool = False,
) -> list[tuple[str, Confidence]]:
    """Confidence limits of every measure of a gap in one group, by name, within the range of the measure.

    Branches of a conversation share tokens, so that they are drawn together. A sum that is infinite has no
    limits.

    Args:
        clusters: Sums of `kept_names`.
        alphas: Weights of the teacher.
        n_replicates: Of the bootstrap.
        with_estimates: Whether there are sums of estimates; their limits come last.
    """
    columns, n_tokens = by_conversation(clusters, N_ESTIMATED if with_estimates else None)
    if not len(n_tokens):
        return []
    lower, upper = {}, {}
    for row in gaps(alphas):
        lower[row.name], upper[row.name] = columns[row.columns[0]], columns[row.columns[-1]]
        is_unbounded = np.abs(upper[row.name]) > LARGEST
        if row.may_be_unbounded:
            is_unbounded |= columns[f"n_unbounded_{row.name}"] > 0
        upper[row.name] = np.where(is_unbounded, np.inf, upper[row.name])
    possible = {row.name: row.range for row in gaps(alphas) if row.is_interval}
    limits = limits_of_means(lower, n_tokens, n_replicates, possible, upper)
    if with_estimates:
        n_estimated = columns[N_ESTIMATED].astype(np.int64)
        estimates = {name: columns[name] for name in ESTIMATE_COLUMNS[1:]}
        # A KL is never below 0, but what is no estimate of one may be, and should be seen to be.
        limits += limits_of_means(estimates, n_estimated, n_replicates, {"estimate_k3": (0.0, math.inf)})
    return limits


def confidence_of_means(
    clusters: Clusters, alphas: Sequence[float], n_replicates: int = N_REPLICATES
) -> tuple[NamedConfidence, ...]:
    """Confidence limits of means that are known exactly; none of those with a sum beyond `LARGEST`.

    Args:
        clusters: Sums of measures of gaps, inf where a token's value is.
        alphas: Weights of the teacher.
        n_replicates: Of the bootstrap.
    """
    columns, n_tokens = by_conversation(clusters)
    if not len(n_tokens):
        return ()
    possible = {row.name: row.range for row in gaps(alphas) if row.is_interval}
    found = limits_of_means(columns, n_tokens, n_replicates, possible)
    return tuple(
        NamedConfidence(name, each.lower, each.upper, None, None, each.n_conversations, each.is_rough)
        for name, each in found
    )


def by_conversation(
    clusters: Clusters, n_sampled: str | None = None
) -> tuple[dict[str, FloatArray], NDArray[np.int64]]:
    """Sums by column and tokens of conversations, all branches and copies of one together.

    Args:
        clusters: Sums of branches.
        n_sampled: The column that counts sampled tokens, of which there are no copies; None without one.
    """
    starts, at = [], 0
    for _, branches in groupby(clusters.names, key=lambda name: name[0]):
        starts.append(at)
        at += sum(1 for _ in branches)
    if not starts:
        return {}, clusters.n_tokens[:0]
    with np.errstate(invalid="ignore"):  # of log-ratios that are infinite both ways
        sums = {name: np.add.reduceat(column, starts) for name, column in clusters.sums.items()}
    is_drawn = None if n_sampled is None else sums[n_sampled] > 0
    return copies_together(sums, np.add.reduceat(clusters.n_tokens, starts), is_drawn)


def why_unlimited(
    confidence: Sequence[NamedConfidence], metric: str, why_unconfident: str | None, *, is_total: bool
) -> str:
    """Why a number of the confidence of a row is not there; empty where that is not known.

    Args:
        confidence: Of the row.
        metric: Its dotted name.
        why_unconfident: Why no group of the report has any.
        is_total: Whether the row is that of all tokens.
    """
    if not confidence:
        return why_unconfident or ""
    if is_total and metric.endswith(".adjusted_p_value"):
        return "all tokens together are one test, whose p_value needs no adjustment"
    return f"{counted(confidence[0].n_conversations, 'conversation')} set none"


def why_unconfident(by: Grouping, n_groups: int) -> str | None:
    """Why no group of a report has confidence limits, though the total may; None where they may."""
    if by.is_narrow:
        return "there are as many groups as positions or conversations"
    if n_groups > MAX_CONFIDENT_GROUPS:
        return f"{n_groups:,} groups are more than {MAX_CONFIDENT_GROUPS}"
    return None


def named_confidence(
    groups: Sequence[Sequence[tuple[str, Confidence]]], total: Sequence[tuple[str, Confidence]]
) -> tuple[list[tuple[NamedConfidence, ...]], tuple[NamedConfidence, ...]]:
    """The limits of every group and of all tokens, with p-values adjusted for all groups."""
    adjusted: dict[tuple[int, str], float] = {}
    for name in tested():
        limits = [dict(cells).get(name) for cells in groups]
        p_values = [None if each is None else each.p_value for each in limits]
        values = benjamini_hochberg([np.nan if p is None else p for p in p_values])
        adjusted |= {(index, name): float(p) for index, p in enumerate(values) if not np.isnan(p)}

    def named(index: int, cells: Sequence[tuple[str, Confidence]]) -> tuple[NamedConfidence, ...]:
        return tuple(
            NamedConfidence(
                name,
                each.lower,
                each.upper,
                each.p_value if name in tested() else None,
                adjusted.get((index, name)),
                each.n_conversations,
                each.is_rough,
            )
            for name, each in cells
        )

    return [named(index, cells) for index, cells in enumerate(groups)], named(-1, total)


def limits_of_means(
    sums: Mapping[str, FloatArray],
    n_tokens: NDArray[np.int64],
    n_replicates: int,
    possible: Mapping[str, tuple[float, float]],
    upper_sums: Mapping[str, FloatArray] | None = None,
) -> list[tuple[str, Confidence]]:
    """Confidence limits of means per token, by name; none of those with a sum beyond `LARGEST`.

    Args:
        sums: Of each conversation, by name.
        n_tokens: Of each.
        n_replicates: Of the bootstrap.
        possible: Least and largest value that a mean may have, by name.
        upper_sums: Of the upper ends, where `sums` are of lower ends.
    """
    certain = [name for name, column in sums.items() if (np.abs(column) <= LARGEST).all()]
    lower, upper = (
        np.stack([each[name] for name in certain]) if certain else np.zeros((0, len(n_tokens)))
        for each in (sums, upper_sums or sums)
    )
    found = clustered_confidence(
        certain, lower, n_tokens, None if upper_sums is None else upper, n_replicates=n_replicates
    )
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
    return limits._replace(lower=finite(lower), upper=finite(upper))
