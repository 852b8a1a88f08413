"""Two score datasets compared: means per group of tokens, with certified intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.analytics.comparison import ComparedTokens, Comparison
from tokscore.analytics.groups import Grouping, GroupKey, group_order, message_counts_by, parse_group_by
from tokscore.analytics.overlap import FloatArray
from tokscore.analytics.totals import ExactSums
from tokscore.rendering.dataset import Dataset


class Interval(NamedTuple):
    """Mean of a divergence per token, in nats.

    Attributes:
        lower: At most the mean over the whole vocabulary; None without tokens.
        upper: At least that mean; None without tokens, or where any token has no upper limit.
        n_unbounded: Tokens without an upper limit.
    """

    lower: float | None
    upper: float | None
    n_unbounded: int

    @property
    def is_unbounded(self) -> bool:
        """Whether `upper` is None for want of a limit."""
        return self.n_unbounded > 0


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Means per compared token of one group; None without tokens.

    Attributes:
        group: What its tokens share; None for tokens of no message, and in the total.
        n_tokens: Tokens that both models gave a logprob.
        n_unscored: Tokens that one of them did not.
        n_beyond_vocabulary: Compared tokens whose realised or listed ids are not all in both vocabularies.
        teacher_logprob: Of the realised token.
        student_logprob: Of the realised token.
        log_ratio: Teacher's less student's logprob.
        kl_teacher_student: KL(teacher || student).
        kl_student_teacher: KL(student || teacher).
        gjs: With alpha as the weight of the teacher.
        unresolved: Mixture mass on ids that are not known on both sides.
        unresolved_teacher: Teacher mass on them.
        unresolved_student: Student mass on them.
        top1_agreement: Share of tokens where both find the same id most likely; None without lists.
    """

    group: GroupKey
    n_tokens: int
    n_unscored: int
    n_beyond_vocabulary: int
    teacher_logprob: float | None
    student_logprob: float | None
    log_ratio: float | None
    kl_teacher_student: Interval
    kl_student_teacher: Interval
    gjs: Interval
    unresolved: float | None
    unresolved_teacher: float | None
    unresolved_student: float | None
    top1_agreement: float | None

    def to_dict(self) -> dict[str, object]:
        """For JSON: an unlimited `upper` is null beside `"unbounded": true`."""
        row = asdict(self)
        for name in ("kl_teacher_student", "kl_student_teacher", "gjs"):
            interval: Interval = getattr(self, name)
            row[name] = {**interval._asdict(), "unbounded": interval.is_unbounded}
        return row


@dataclass(frozen=True, slots=True)
class DiffReport:
    """What `diff` found.

    Attributes:
        by: What the groups share.
        alpha: Weight of the teacher in the GJS.
        groups: One row per group, tokens of no message last.
        total: All tokens together; its numbers do not depend on `by`.
        n_conversations: Conversations (or branches) compared.
        n_only_teacher: Those that the student's dataset lacks.
        n_only_student: Those that the teacher's dataset lacks.
        is_self: The manifests prove the same plan and model, so that equal rows have the upper limit 0.
    """

    by: Grouping
    alpha: float
    groups: tuple[DiffRow, ...]
    total: DiffRow
    n_conversations: int
    n_only_teacher: int
    n_only_student: int
    is_self: bool

    def rows(self) -> list[DiffRow]:
        """The groups and the total."""
        return [*self.groups, self.total]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "alpha": self.alpha,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "n_conversations": self.n_conversations,
            "n_only_teacher": self.n_only_teacher,
            "n_only_student": self.n_only_student,
            "is_self": self.is_self,
        }


def diff(teacher: Path | str, student: Path | str, *, alpha: float = 0.5, by: str = "role") -> DiffReport:
    """Compare two score datasets of the same conversations.

    Memory does not grow with the number of tokens, and no number depends on how the datasets are
    divided into parts.

    Args:
        teacher: The score dataset of one model.
        student: That of the other.
        alpha: Weight of the teacher in the GJS, between 0 and 1.
        by: Token column that makes the groups, one of `GroupBy`.

    Raises:
        UsageError: alpha or `by` is not allowed.
        InputError: No whole score datasets; tokenizers, temperatures, logprob modes or token ids
            differ; no conversation is shared; a logprob is NaN, infinite or above 0.
    """
    column = parse_group_by(by)
    comparison = Comparison(Path(teacher), Path(student), alpha=alpha, columns=(column.value,))
    totals = _Totals()
    groups: dict[GroupKey, _Totals] = {}
    for tokens in comparison:
        values = _values(tokens)
        totals.add(values, tokens.attribution.num_rows)
        codes, keys = _local_groups(tokens.attribution[column.value])
        compared = codes[tokens.positions]
        for code, key in enumerate(keys):
            group = groups.setdefault(key, _Totals())
            group.add(values[:, compared == code], int(np.count_nonzero(codes == code)))
    for key in message_counts_by(Dataset(Path(teacher)), column):
        groups.setdefault(key, _Totals())
    pairing = comparison.pairing
    return DiffReport(
        by=column,
        alpha=alpha,
        groups=tuple(groups[key].row(key) for key in sorted(groups, key=group_order)),
        total=totals.row(None),
        n_conversations=pairing.n_conversations,
        n_only_teacher=pairing.n_only_teacher,
        n_only_student=pairing.n_only_student,
        is_self=comparison.is_self,
    )


_VALUES = (
    "teacher_logprob",
    "student_logprob",
    "log_ratio",
    "kl_teacher_student_lower",
    "kl_teacher_student_upper",
    "kl_student_teacher_lower",
    "kl_student_teacher_upper",
    "gjs_lower",
    "gjs_upper",
    "unresolved_teacher",
    "unresolved_student",
    "unresolved",
    "n_agreeing",
    "n_top1",
    "n_unbounded_teacher_student",
    "n_unbounded_student_teacher",
    "n_beyond_vocabulary",
)


def _values(tokens: ComparedTokens) -> FloatArray:
    """What is summed, in the order of `_VALUES`; shape [values, compared]."""
    kl_teacher_student, kl_student_teacher, gjs = tokens.divergences
    unbounded = [np.isinf(bounds.upper) for bounds in (kl_teacher_student, kl_student_teacher)]
    return np.stack(
        [
            tokens.teacher_logprobs,
            tokens.student_logprobs,
            tokens.teacher_logprobs - tokens.student_logprobs,
            kl_teacher_student.lower,
            np.where(unbounded[0], 0.0, kl_teacher_student.upper),
            kl_student_teacher.lower,
            np.where(unbounded[1], 0.0, kl_student_teacher.upper),
            gjs.lower,
            gjs.upper,
            kl_teacher_student.unresolved,
            kl_student_teacher.unresolved,
            gjs.unresolved,
            tokens.top1_agreement == 1,
            tokens.top1_agreement >= 0,
            *unbounded,
            tokens.is_beyond_vocabulary,
        ]
    )


class _Totals:
    """Running sums of one group."""

    def __init__(self) -> None:
        self._sums = ExactSums(len(_VALUES))
        self._n_rows = 0
        self._n_tokens = 0

    def add(self, values: FloatArray, n_rows: int) -> None:
        """Add tokens of one conversation, `n_rows` of them counting those without a logprob."""
        # One float64 sum per conversation: exact sums of every token would take most of the time.
        self._sums.add(values.sum(axis=1).tolist())
        self._n_rows += n_rows
        self._n_tokens += values.shape[1]

    def row(self, group: GroupKey) -> DiffRow:
        n_tokens = self._n_tokens
        sums = dict(zip(_VALUES, self._sums.values(), strict=True))
        mean = {name: value / n_tokens if n_tokens else None for name, value in sums.items()}

        def interval(name: str, n_unbounded: float = 0.0) -> Interval:
            upper = None if n_unbounded else mean[f"{name}_upper"]
            return Interval(mean[f"{name}_lower"], upper, int(n_unbounded))

        return DiffRow(
            group=group,
            n_tokens=n_tokens,
            n_unscored=self._n_rows - n_tokens,
            n_beyond_vocabulary=int(sums["n_beyond_vocabulary"]),
            teacher_logprob=mean["teacher_logprob"],
            student_logprob=mean["student_logprob"],
            log_ratio=mean["log_ratio"],
            kl_teacher_student=interval("kl_teacher_student", sums["n_unbounded_teacher_student"]),
            kl_student_teacher=interval("kl_student_teacher", sums["n_unbounded_student_teacher"]),
            gjs=interval("gjs"),
            unresolved=mean["unresolved"],
            unresolved_teacher=mean["unresolved_teacher"],
            unresolved_student=mean["unresolved_student"],
            top1_agreement=sums["n_agreeing"] / sums["n_top1"] if sums["n_top1"] else None,
        )


def _local_groups(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[GroupKey]]:
    """A code for each row, and the key that each code stands for."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
