"""One row of exact values: the means of a group of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokscore.analytics.comparison.confidence import NamedConfidence, blank_confidence, confidence_of_means
from tokscore.analytics.comparison.diff_rows import flat_numbers
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.exact.columns import SAME_TOP, exact_measures
from tokscore.analytics.exact.summary import summary_names
from tokscore.analytics.groups.grouping import GroupKey

# Before the names of exact numbers where they stand beside those of lists.
PREFIX = "exact."


@dataclass(frozen=True, slots=True)
class ExactRow:
    """Means per token of one group over the whole vocabulary, in nats.

    Attributes:
        group: What its tokens share.
        n_tokens: Tokens compared.
        n_infinite: Tokens with an infinite KL, by the name of the KL; its mean is None then.
        values: Means by the names of `exact_measures`; None where one is infinite, and without tokens.
        top1_agreement: Share of tokens where both find the same id most likely; None without tokens.
        confidence: Of every measure of a gap; empty without tokens, and where groups are narrow or many.
    """

    group: GroupKey
    n_tokens: int
    n_infinite: Mapping[str, int]
    values: Mapping[str, float | None]
    top1_agreement: float | None
    confidence: tuple[NamedConfidence, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        counts = {f"{name}_n_infinite": n for name, n in self.n_infinite.items()}
        confidence = {each.name: each.to_dict() for each in self.confidence}
        return {
            "group": list(self.group) if isinstance(self.group, tuple) else self.group,
            "n_tokens": self.n_tokens,
            **self.values,
            "top1_agreement": self.top1_agreement,
            **counts,
            "confidence": confidence,
        }

    def flat(self) -> dict[str, float | int | None]:
        """All numbers by dotted name, such as `exact.gjs_0.5`."""
        numbers = flat_numbers({name: value for name, value in self.to_dict().items() if name != "group"})
        return {f"{PREFIX}{name}": value for name, value in numbers.items()}


def exact_row(key: GroupKey, group: Group, alphas: Sequence[float], n_replicates: int | None) -> ExactRow:
    """The means of a group, with confidence limits from so many replicates."""
    names = [measure.name for measure in exact_measures(alphas)]
    counts = {name: f"n_infinite_{name}" for name in names}
    n, sums = group.n_tokens, group.sums
    measured = [measure.name for measure in exact_measures(alphas) if measure.is_gap]
    clusters = group.clusters._replace(
        sums={name: column for name, column in group.clusters.sums.items() if name in measured}
    )
    return ExactRow(
        key,
        n,
        {name: int(sums[count]) for name, count in counts.items() if count in sums},
        {name: finite(sums[name] / n) if n else None for name in names},
        sums[SAME_TOP.name] / n if n else None,
        () if n_replicates is None else confidence_of_means(clusters, alphas, n_replicates),
    )


def metric_names(alphas: Sequence[float]) -> tuple[str, ...]:
    """Dotted names of all numbers of a row that has confidence limits, and of the summary."""
    exact = exact_measures(alphas)
    gaps = [measure.name for measure in exact if measure.is_gap]
    n_infinite = {measure.name: 0 for measure in exact if measure.is_gap and measure.may_be_unbounded}
    values = dict.fromkeys(measure.name for measure in exact)
    row = ExactRow(None, 0, n_infinite, values, None, blank_confidence(gaps))
    return (*row.flat(), *(f"{PREFIX}summary.{name}" for name in summary_names()))
