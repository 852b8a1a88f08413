"""What `diff` says about one group of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokscore.analytics.comparison.confidence import ESTIMATES, N_ESTIMATED, NamedConfidence
from tokscore.analytics.comparison.measures import INTERVALS
from tokscore.analytics.comparison.off_policy import OffPolicy, finite, off_policy
from tokscore.analytics.comparison.reduction import Group
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


class Mixture(NamedTuple):
    """Measures with a mixture M = alpha T + (1 - alpha) S of both models.

    Attributes:
        alpha: Weight of the teacher.
        gjs: alpha KL(T || M) + (1 - alpha) KL(S || M).
        skew_kl: KL(T || M).
        unresolved: Mass of M on ids that are not known on both sides.
    """

    alpha: float
    gjs: Interval
    skew_kl: Interval
    unresolved: float | None


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
        teacher_logprob: Of the realised token.
        student_logprob: Of the realised token.
        log_ratio: Teacher's less student's logprob.
        delta_p: Teacher's less student's probability.
        kl_teacher_student: KL(teacher || student).
        kl_student_teacher: KL(student || teacher).
        total_variation: sum |p - q| / 2.
        entropy_teacher: Of the teacher's distribution.
        entropy_student: Of the student's.
        mixtures: GJS and skew KL for every alpha.
        unresolved_teacher: Teacher mass on ids that are not known on both sides.
        unresolved_student: Student mass on them.
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
    teacher_logprob: float | None
    student_logprob: float | None
    log_ratio: float | None
    delta_p: float | None
    kl_teacher_student: Interval
    kl_student_teacher: Interval
    total_variation: Interval
    entropy_teacher: Interval
    entropy_student: Interval
    mixtures: tuple[Mixture, ...]
    unresolved_teacher: float | None
    unresolved_student: float | None
    top1_agreement: float | None
    teacher_rank: Ranks
    student_rank: Ranks
    off_policy: OffPolicy
    estimate: Estimate | None
    confidence: tuple[NamedConfidence, ...]

    @property
    def gjs(self) -> Interval:
        """With the first alpha."""
        return self.mixtures[0].gjs

    @property
    def unresolved(self) -> float | None:
        """Mixture mass on ids that are not known on both sides, with the first alpha."""
        return self.mixtures[0].unresolved

    def intervals(self) -> dict[str, Interval]:
        """All intervals by name, such as `gjs_0.5`."""
        named: dict[str, Interval] = {name: getattr(self, name) for name in INTERVALS}
        for mixture in self.mixtures:
            named[f"gjs_{mixture.alpha:g}"] = mixture.gjs
            named[f"skew_kl_{mixture.alpha:g}"] = mixture.skew_kl
        return named

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        row: dict[str, object] = {"group": list(self.group) if isinstance(self.group, tuple) else self.group}
        row |= {name: getattr(self, name) for name in _SCALARS}
        row |= {name: interval.to_dict() for name, interval in self.intervals().items()}
        row |= {f"unresolved_{mixture.alpha:g}": mixture.unresolved for mixture in self.mixtures}
        row["teacher_rank"], row["student_rank"] = self.teacher_rank._asdict(), self.student_rank._asdict()
        row["off_policy"] = self.off_policy.to_dict()
        row["estimate"] = None if self.estimate is None else self.estimate._asdict()
        row["confidence"] = {each.name: each.to_dict() for each in self.confidence}
        return row

    def flat(self) -> dict[str, float | int | None]:
        """All numbers and booleans by dotted name, such as `gjs_0.5.lower`."""
        found: dict[str, float | int | None] = {}
        _flatten("", {key: value for key, value in self.to_dict().items() if key != "group"}, found)
        return found


_SCALARS = (
    "n_tokens",
    "n_unscored",
    "n_unaligned",
    "n_beyond_vocabulary",
    "teacher_logprob",
    "student_logprob",
    "log_ratio",
    "delta_p",
    "unresolved_teacher",
    "unresolved_student",
    "top1_agreement",
)


def _flatten(prefix: str, values: Mapping[str, object], found: dict[str, float | int | None]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}{key}.", value, found)
        elif key != "unbounded" and (value is None or isinstance(value, int | float)):  # n_unbounded says it
            found[prefix + key] = value


def row_of(
    key: GroupKey, group: Group, sums: Mapping[str, float], alphas: Sequence[float], sampler: Sampler | None
) -> DiffRow:
    """The row of one group, without confidence limits.

    Args:
        key: Of the group.
        group: What was added up.
        sums: Its sums by name.
        alphas: Weights of the teacher.
        sampler: Who sampled the tokens, if that was said.
    """
    n_tokens = group.n_tokens

    def mean(name: str, n: float = n_tokens) -> float | None:
        return finite(sums[name] / n) if n else None

    def interval(name: str) -> Interval:
        n_unbounded = int(sums.get(f"n_unbounded_{name}", 0))
        return Interval(mean(f"{name}.lower"), None if n_unbounded else mean(f"{name}.upper"), n_unbounded)

    def ranks(side: str) -> Ranks:
        n_ranked = sums[f"n_{side}_ranked"]
        return Ranks(mean(f"{side}_rank", n_ranked), mean(f"n_{side}_rank1", n_ranked))

    def mixture(alpha: float) -> Mixture:
        unresolved = [mean(f"unresolved_{side}") or 0.0 for side in ("teacher", "student")]
        return Mixture(
            alpha,
            interval(f"gjs_{alpha:g}"),
            interval(f"skew_kl_{alpha:g}"),
            alpha * unresolved[0] + (1 - alpha) * unresolved[1] if n_tokens else None,
        )

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
        teacher_logprob=mean("teacher_logprob"),
        student_logprob=mean("student_logprob"),
        log_ratio=mean("log_ratio"),
        delta_p=mean("delta_p"),
        kl_teacher_student=interval("kl_teacher_student"),
        kl_student_teacher=interval("kl_student_teacher"),
        total_variation=interval("total_variation"),
        entropy_teacher=interval("entropy_teacher"),
        entropy_student=interval("entropy_student"),
        mixtures=tuple(mixture(alpha) for alpha in alphas),
        unresolved_teacher=mean("unresolved_teacher"),
        unresolved_student=mean("unresolved_student"),
        top1_agreement=mean("n_agreeing", sums["n_top1"]),
        teacher_rank=ranks("teacher"),
        student_rank=ranks("student"),
        off_policy=off_policy(group, sums),
        estimate=estimate,
        confidence=(),
    )
