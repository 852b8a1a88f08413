"""The numbers of `diff` for one group of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tokscore.analytics.comparison.confidence import (
    ESTIMATE_COLUMNS,
    ESTIMATES,
    N_ESTIMATED,
    NamedConfidence,
    blank_confidence,
)
from tokscore.analytics.comparison.off_policy import OffPolicy, finite, off_policy
from tokscore.analytics.comparison.reduction import NO_TOKENS, Group
from tokscore.analytics.divergence.measures import Measure, alpha_name, gaps, intervals, points
from tokscore.analytics.groups.grouping import GroupKey
from tokscore.dataset.choices import Sampler


class Interval(NamedTuple):
    """Mean of a measure per token, in nats.

    Attributes:
        lower: At most the mean over the whole vocabulary; None without tokens, or where it is infinite.
        upper: At least that mean; None without tokens, or where any token has no upper limit.
        n_unbounded: Tokens without an upper limit.
    """

    lower: float | None
    upper: float | None
    n_unbounded: int

    @property
    def is_infinite(self) -> bool:
        """Whether the value of a token certainly is, so that `lower` is None."""
        return self.lower is None and self.n_unbounded > 0

    @property
    def is_unbounded(self) -> bool:
        """Whether `upper` is None for want of a limit."""
        return self.n_unbounded > 0

    def to_dict(self) -> dict[str, object]:
        """For JSON: an unlimited `upper` is null beside `"unbounded": true`."""
        return {**self._asdict(), "unbounded": self.is_unbounded}


class Ranks(NamedTuple):
    """Ranks of the realised tokens in one model; None where there are none.

    Attributes:
        mean: 1 = most likely.
        rank1_share: Share of tokens that no other id beats.
    """

    mean: float | None
    rank1_share: float | None


class Estimate(NamedTuple):
    """Unbiased estimates of a KL per token, from tokens that its first argument sampled; None without tokens.

    Attributes:
        sampler: Who is said to have sampled them.
        direction: Which KL it is.
        n_tokens: Tokens that it is of: the group's compared tokens that are known to be sampled.
        k1: Mean log-ratio.
        k3: Mean of r - 1 - log r with r the inverse ratio.
        topk: The known part of the sum exactly, and the log-ratio for the rest.
    """

    sampler: Sampler
    direction: str
    n_tokens: int
    k1: float | None
    k3: float | None
    topk: float | None


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Means per compared token of one group; None without tokens.

    Attributes:
        group: What its tokens share; None for tokens of no message, and in the total.
        n_tokens: Tokens that both models gave a logprob.
        n_unscored: Tokens that one of them did not.
        n_unaligned: Where only the content is compared, the teacher's content tokens without a partner.
        n_beyond_vocabulary: Compared tokens whose realised or listed ids are not all in both vocabularies.
        alphas: Weights of the teacher in the mixtures.
        points: Means of measures whose value is known, by name; None where one is infinite.
        intervals: Means of measures that are known between two limits, by name, such as `gjs_0.5`.
        top1_agreement: Share of tokens where both find the same id most likely; None without lists.
        teacher_rank: Of the realised token.
        student_rank: Of the realised token.
        off_policy: Importance ratios teacher / student of the realised tokens.
        estimate: Where a sampler was named.
        confidence: Of every measure of a gap and of every estimate; empty without tokens, and where groups
            are narrow or many.
    """

    group: GroupKey
    n_tokens: int
    n_unscored: int
    n_unaligned: int
    n_beyond_vocabulary: int
    alphas: tuple[float, ...]
    points: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    top1_agreement: float | None
    teacher_rank: Ranks
    student_rank: Ranks
    off_policy: OffPolicy
    estimate: Estimate | None
    confidence: tuple[NamedConfidence, ...]

    def __getattr__(self, name: str) -> Any:  # Any: a float, None or an Interval
        """The mean of a measure, such as `row.log_ratio` and `row.kl_teacher_student`."""
        if name in DiffRow.__slots__:  # not set yet
            raise AttributeError(name)
        for means in (self.points, self.intervals):
            if name in means:
                return means[name]
        names = ", ".join([*self.points, *self.intervals])
        raise AttributeError(f"a row has no {name}; expected one of {names}.")

    @property
    def gjs(self) -> Interval:
        """With the first alpha."""
        return self.intervals[alpha_name("gjs", self.alphas[0])]

    @property
    def unresolved(self) -> float | None:
        """Mixture mass on ids that are not known on both sides, with the first alpha."""
        return self.unresolved_at(self.alphas[0])

    def unresolved_at(self, alpha: float) -> float | None:
        """Mass of the mixture with this weight of the teacher on ids that are not known on both sides."""
        mine, theirs = self.points["unresolved_teacher"], self.points["unresolved_student"]
        return None if mine is None or theirs is None else alpha * mine + (1 - alpha) * theirs

    def is_infinite(self, metric: str) -> bool:
        """Whether a number without a value is an upper limit that some token lacks, or infinite itself.

        Args:
            metric: Its dotted name, of a mean or of its confidence.
        """
        name, _, end = metric.removeprefix("confidence.").rpartition(".")
        interval = self.intervals.get(name)
        if interval is None:
            return False
        return interval.is_unbounded if end == "upper" else end == "lower" and interval.is_infinite

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        row: dict[str, object] = {"group": list(self.group) if isinstance(self.group, tuple) else self.group}
        row |= {name: getattr(self, name) for name in _COUNTS}
        row |= self.points
        row["top1_agreement"] = self.top1_agreement
        row |= {name: interval.to_dict() for name, interval in self.intervals.items()}
        row |= {alpha_name("unresolved", alpha): self.unresolved_at(alpha) for alpha in self.alphas}
        row["teacher_rank"], row["student_rank"] = self.teacher_rank._asdict(), self.student_rank._asdict()
        row["off_policy"] = self.off_policy.to_dict()
        row["estimate"] = None if self.estimate is None else self.estimate._asdict()
        row["confidence"] = {each.name: each.to_dict() for each in self.confidence}
        return row

    def flat(self) -> dict[str, float | int | None]:
        """All numbers and booleans by dotted name, such as `gjs_0.5.lower`."""
        return flat_numbers({key: value for key, value in self.to_dict().items() if key != "group"})


def metric_names(alphas: Sequence[float], sampler: Sampler | None = None) -> tuple[str, ...]:
    """Dotted names of all numbers of a row that has confidence limits."""
    limited = [*(measure.name for measure in gaps(alphas)), *(ESTIMATE_COLUMNS[1:] if sampler else ())]
    row = row_of(None, NO_TOKENS, alphas, sampler)
    return tuple(replace(row, confidence=blank_confidence(limited)).flat())


_COUNTS = ("n_tokens", "n_unscored", "n_unaligned", "n_beyond_vocabulary")


def flat_numbers(values: Mapping[str, object]) -> dict[str, float | int | None]:
    """All numbers and booleans of nested objects, by dotted name."""
    found: dict[str, float | int | None] = {}
    _flatten("", values, found)
    return found


def _flatten(prefix: str, values: Mapping[str, object], found: dict[str, float | int | None]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}{key}.", value, found)
        elif key != "unbounded" and (value is None or isinstance(value, int | float)):  # n_unbounded says it
            found[prefix + key] = value


def row_of(key: GroupKey, group: Group, alphas: Sequence[float], sampler: Sampler | None = None) -> DiffRow:
    """The row of one group, without confidence limits.

    Args:
        key: Of the group.
        group: The sums of `summed_columns` and, with a sampler, of `ESTIMATE_COLUMNS`.
        alphas: Weights of the teacher.
        sampler: Who sampled the tokens, if that was said.
    """
    n_tokens, sums = group.n_tokens, group.sums

    def mean(name: str, n: float = n_tokens) -> float | None:
        return finite(sums[name] / n) if n else None

    def interval(measure: Measure) -> Interval:
        n_unbounded = int(sums[f"n_unbounded_{measure.name}"]) if measure.may_be_unbounded else 0
        lower, upper = (mean(column) for column in measure.columns)
        return Interval(lower, None if n_unbounded else upper, n_unbounded)

    def ranks(side: str) -> Ranks:
        n_ranked = sums[f"n_{side}_ranked"]
        return Ranks(mean(f"{side}_rank", n_ranked), mean(f"n_{side}_rank1", n_ranked))

    estimate = None
    if sampler is not None:
        other = Sampler.STUDENT if sampler is Sampler.TEACHER else Sampler.TEACHER
        n_sampled = int(sums[N_ESTIMATED])
        means = (mean(f"estimate_{k}", n_sampled) for k in ESTIMATES)
        estimate = Estimate(sampler, f"kl_{sampler}_{other}", n_sampled, *means)
    return DiffRow(
        group=key,
        n_tokens=n_tokens,
        n_unscored=group.n_rows - n_tokens,
        n_unaligned=group.n_unaligned,
        n_beyond_vocabulary=int(sums["n_beyond_vocabulary"]),
        alphas=tuple(alphas),
        points={measure.name: mean(measure.name) for measure in points(alphas)},
        intervals={measure.name: interval(measure) for measure in intervals(alphas)},
        top1_agreement=mean("n_agreeing", sums["n_top1"]),
        teacher_rank=ranks("teacher"),
        student_rank=ranks("student"),
        off_policy=off_policy(group),
        estimate=estimate,
        confidence=(),
    )
