"""The means of exact values by group of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tokscore.analytics.comparison.compare import scored_vocab_size
from tokscore.analytics.comparison.confidence import (
    MAX_CONFIDENT_GROUPS,
)
from tokscore.analytics.comparison.reduction import Reduced, Reduction, reduce_batch
from tokscore.analytics.divergence.measures import Measure
from tokscore.analytics.exact.columns import SAME_TOP, exact_measures
from tokscore.analytics.exact.figures import Summary
from tokscore.analytics.exact.moments import MEANS, moment_columns, moments_of
from tokscore.analytics.exact.parts import ExactParts
from tokscore.analytics.exact.rows import PREFIX, ExactRow, exact_row
from tokscore.analytics.exact.run import ExactPart, ExactRun
from tokscore.analytics.exact.stored import StoredGap
from tokscore.analytics.exact.summary import summarise
from tokscore.analytics.groups.grouping import Grouping, GroupKey, group_order, parse_group_by
from tokscore.analytics.statistics.bootstrap import N_REPLICATES
from tokscore.analytics.statistics.multiplicity import replicates_for

# The measures that are asked for most.
_FIRST = ("kl_teacher_student", "kl_student_teacher", "gjs", "total_variation", "log_ratio")


@dataclass(frozen=True, slots=True)
class ExactReport:
    """Means of an exact table.

    Attributes:
        by: What the groups share.
        measures: Of the values, in order.
        groups: One row per group, tokens of no message last.
        total: All tokens together.
        teacher_vocab_size: Ids that the teacher has; an id has probability 0 in the model that lacks it.
        student_vocab_size: Ids that the student has.
        teacher_stored: Differences from the logprobs in the teacher's dataset, all within the noise.
        student_stored: In the student's.
        summary: The figures by which quantised models are judged, of all tokens.
        parts: The values of every token.
    """

    by: Grouping
    measures: tuple[Measure, ...]
    groups: tuple[ExactRow, ...]
    total: ExactRow
    teacher_vocab_size: int
    student_vocab_size: int
    teacher_stored: StoredGap
    student_stored: StoredGap
    summary: Summary
    parts: ExactParts = field(compare=False)

    @property
    def shown(self) -> list[Measure]:
        """The measures in the order in which they are asked for, as tables have them."""
        return sorted(self.measures, key=_place)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "teacher_vocab_size": self.teacher_vocab_size,
            "student_vocab_size": self.student_vocab_size,
            "stored_logprobs": {
                "teacher": self.teacher_stored._asdict(),
                "student": self.student_stored._asdict(),
            },
            "summary": self.summary.to_dict(),
        }

    def flat_of(self, group: GroupKey) -> dict[str, float | int | None]:
        """The numbers of a group by dotted name; all None where it has no tokens here."""
        for row in self.groups:
            if row.group == group:
                return row.flat()
        return dict.fromkeys(self.total.flat())

    def flat_total(self) -> dict[str, float | int | None]:
        """Those of all tokens, with the summary under `exact.summary.`."""
        summary = {f"{PREFIX}summary.{name}": value for name, value in self.summary.flat().items()}
        return self.total.flat() | summary


def _place(measure: Measure) -> int:
    return next((place for place, name in enumerate(_FIRST) if measure.name.startswith(name)), len(_FIRST))


def exact_report(run: ExactRun, *, by: str | Sequence[str] = "role") -> ExactReport:
    """Means over the whole vocabulary of the tokens that two datasets share; those that are there are read.

    Args:
        run: Over both datasets, with the token columns of `by`.
        by: As `parse_group_by` takes it.

    Raises:
        UsageError: `by` is not allowed.
        InputError: A dataset or a part is damaged, does not say which model scored it, or holds other
            logprobs than the models give.
        EngineError: A model failed.
    """
    grouping = parse_group_by(by)
    alphas = run.parts.alphas
    sizes = scored_vocab_size(run.teacher), scored_vocab_size(run.student)
    exact = exact_measures(alphas)
    kept = dict.fromkeys([*(measure.name for measure in exact if measure.is_gap), *MEANS])
    reduction = Reduction(list(kept), grouping)
    for part in run:
        reduction.add(_reduced(part, exact, grouping))
    groups = {key: reduction.group(key) for key in sorted(reduction.keys(), key=group_order)}
    whole = reduction.total()
    n_replicates = None if len(groups) > MAX_CONFIDENT_GROUPS else replicates_for(len(groups))
    return ExactReport(
        grouping,
        tuple(exact),
        tuple(exact_row(key, group, alphas, n_replicates) for key, group in groups.items()),
        exact_row(None, whole, alphas, N_REPLICATES),
        sizes[0],
        sizes[1],
        run.stored[0].gap,
        run.stored[1].gap,
        summarise(moments_of(whole), run.parts.values),
        run.parts,
    )


def _reduced(part: ExactPart, exact: Sequence[Measure], by: Grouping) -> Reduced:
    names = (*(measure.name for measure in exact), SAME_TOP.name)
    values = {name: part.table[name].to_numpy() for name in names}
    columns = values | moment_columns(values)
    for measure in exact:
        if measure.may_be_unbounded and measure.is_gap:
            columns[f"n_infinite_{measure.name}"] = np.isinf(values[measure.name]).astype(np.float64)
    pair = part.pair
    return reduce_batch(columns, part.rows, pair.places, pair.starts, pair.teacher, by, sketched=None)
