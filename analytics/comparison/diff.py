"""Two score datasets compared: means per group of tokens, with certified intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.analytics.comparison.compare import ComparedBatch, Comparison
from tokscore.analytics.comparison.confidence import (
    ESTIMATE_COLUMNS,
    MAX_CONFIDENT_GROUPS,
    confidence_of,
    kept_names,
    named_confidence,
    why_unconfident,
    why_unlimited,
)
from tokscore.analytics.comparison.content_alignment import AlignedRows, Alignment
from tokscore.analytics.comparison.contexts import (
    Context,
    DivergentToken,
    find_contexts,
    read_contexts,
    smallest,
)
from tokscore.analytics.comparison.diff_rows import DiffRow, row_of
from tokscore.analytics.comparison.noise import NoiseFloor, read_noise_floor
from tokscore.analytics.comparison.off_policy import OVERFLOWING
from tokscore.analytics.comparison.pairing import Skipped
from tokscore.analytics.comparison.reduction import Group, Reduced, Reduction, reduce_batch
from tokscore.analytics.comparison.sums import summed_columns
from tokscore.analytics.comparison.tables import TokenTable, token_table, write_groups
from tokscore.analytics.divergence.intervals import checked_alphas
from tokscore.analytics.divergence.sampled_kl import sampled_kl
from tokscore.analytics.divergence.topk import FloatArray, TopK
from tokscore.analytics.groups.grouping import (
    Grouping,
    group_order,
    message_counts_by,
    parse_group_by,
)
from tokscore.analytics.groups.tables import group_table
from tokscore.analytics.statistics.multiplicity import replicates_for
from tokscore.dataset.choices import Align, OnError, Sampler, choose
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.files import PathName, output_location
from tokscore.dataset.manifest import read_manifest

_LOGARITHMS = ("teacher_logprob", "student_logprob", "log_ratio")
_FROM_LISTS = ("teacher_rank.", "student_rank.", "top1_agreement")


@dataclass(frozen=True, slots=True)
class DiffReport:
    """The comparison of two score datasets.

    Attributes:
        by: What the groups share.
        alphas: Weights of the teacher in the mixtures.
        groups: One row per group, tokens of no message last.
        total: All tokens together; its numbers do not depend on `by`.
        n_conversations: Conversations (or branches) compared.
        n_only_teacher: Those that the student's dataset lacks.
        n_only_student: Those that the teacher's dataset lacks.
        skipped: Those that were left out for what is wrong with them.
        is_self: The manifests prove the same plan and model, so that equal rows have the upper limit 0.
        contexts: The tokens where the models differ most, by the GJS with the first alpha.
        noise_floor: What the engine differs from itself, if that was given.
        alignment: Where only the content was compared, how much of it; None otherwise.
    """

    by: Grouping
    alphas: tuple[float, ...]
    groups: tuple[DiffRow, ...]
    total: DiffRow
    n_conversations: int
    n_only_teacher: int
    n_only_student: int
    skipped: tuple[Skipped, ...]
    is_self: bool
    contexts: tuple[Context, ...]
    noise_floor: NoiseFloor | None
    alignment: Alignment | None

    @property
    def alpha(self) -> float:
        """The first alpha."""
        return self.alphas[0]

    @property
    def why_unconfident(self) -> str | None:
        """Why no group has confidence limits, though the total may; None where groups may have them."""
        return why_unconfident(self.by, len(self.groups))

    def rows(self) -> list[DiffRow]:
        """The groups and the total."""
        return [*self.groups, self.total]

    def why_missing(self, row: DiffRow, metric: str) -> str:
        """Why a number of a row is not there; empty where that is not known."""
        if not row.n_tokens:
            return "the group has no tokens that both models scored"
        if metric.startswith("confidence."):
            return why_unlimited(row.confidence, metric, self.why_unconfident, is_total=row is self.total)
        if metric in _LOGARITHMS:
            return "a model rules a token out, whose logprob is -inf"
        if metric in OVERFLOWING:
            return "ratios of the two models' probabilities are beyond the range of float64"
        if metric.startswith("off_policy."):
            return self.why_unconfident or ""
        if metric.startswith(_FROM_LISTS):
            return "the datasets have no ranks or lists for it"
        return ""

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "alphas": list(self.alphas),
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "n_conversations": self.n_conversations,
            "n_only_teacher": self.n_only_teacher,
            "n_only_student": self.n_only_student,
            "n_skipped": len(self.skipped),
            "skipped": [each._asdict() for each in self.skipped],
            "is_self": self.is_self,
            "contexts": [each._asdict() for each in self.contexts],
            "noise_floor": None if self.noise_floor is None else self.noise_floor._asdict(),
            "alignment": None if self.alignment is None else self.alignment._asdict(),
        }


class _Part(NamedTuple):
    """Contribution of one batch to the report."""

    reduced: Reduced
    contexts: list[DivergentToken]
    tokens: pa.Table | None
    alignment: AlignedRows | None


def diff_report(
    teacher: PathName,
    student: PathName,
    *,
    alpha: float | Sequence[float] = 0.5,
    by: str | Sequence[str] = "role",
    on_error: OnError | str = OnError.FAIL,
    sampled_by: Sampler | str | None = None,
    noise_floor: PathName | None = None,
    out: PathName | None = None,
    align: Align | str = Align.TOKENS,
) -> DiffReport:
    """Compare two score datasets of the same conversations.

    Memory grows with the number of groups and of conversations, not of tokens, and no number depends on how
    the datasets are divided into parts or ordered.

    Args:
        teacher: The score dataset of one model.
        student: That of the other.
        alpha: Weight of the teacher in the mixtures, between 0 and 1; or several.
        by: The columns that make the groups, as `groups.parse_group_by` takes it.
        on_error: Whether a bad conversation ends the run or is left out.
        sampled_by: The model that sampled, at temperature 1, the tokens whose `is_sampled` is true: adds
            unbiased estimates of a KL from these alone.
        noise_floor: JSON of `tokscore selfcheck`.
        out: Directory for tokens.parquet and groups.parquet, new or empty.
        align: "content" compares only the content tokens that both have in the same place of the same
            message, for conversations rendered with two templates; else all token ids have to be equal.

    Raises:
        UsageError: An alpha, `by` or `out` is not allowed; `sampled_by` is given where only the content is
            compared, since whether a token is then depends on what was sampled.
        InputError: No whole score datasets; tokenizers, temperatures, logprob modes or token ids
            differ; no conversation, or none of its content, is shared; a logprob is NaN, infinite or above 0;
            `sampled_by` is given and the scores are not of temperature 1.
    """
    grouping = parse_group_by(by)
    alphas = checked_alphas([alpha] if isinstance(alpha, int | float) else alpha)
    align = choose(Align, align, "align")
    if align is Align.TEXT:
        raise UsageError("`align='text'` gives other numbers, of spans; call `analytics.text_report`.")
    if sampled_by is not None and align is Align.CONTENT:
        raise UsageError(
            "`sampled_by` estimates need every sampled token, and `align='content'` leaves some out. "
            "Leave one of them out."
        )
    sampler = None if sampled_by is None else choose(Sampler, sampled_by, "sampled_by")
    floor = None if noise_floor is None else read_noise_floor(Path(noise_floor))
    comparison = Comparison(
        Path(teacher),
        Path(student),
        alphas=alphas,
        columns=[*grouping.token_columns, *(["is_sampled"] if sampler else [])],
        on_error=choose(OnError, on_error, "on_error"),
        align=align,
    )
    if sampler is not None:
        _check_temperatures(Path(teacher), Path(student))
    reduction = Reduction(kept_names(alphas, with_estimates=sampler is not None), grouping)
    contexts: list[DivergentToken] = []
    alignment = Alignment(0, 0, 0) if align is Align.CONTENT else None

    def reduce(batch: ComparedBatch) -> _Part:
        values = summed_columns(batch)
        if sampler is not None:
            values |= zip(ESTIMATE_COLUMNS, _estimates(batch, sampler), strict=True)
        reduced = reduce_batch(
            values, batch.rows, batch.places, batch.starts, batch.attribution, grouping, batch.alignment
        )
        table = None if out is None else token_table(batch, grouping)
        return _Part(reduced, find_contexts(batch), table, batch.alignment)

    with TokenTable(None if out is None else output_location(out)) as tokens:
        for part in comparison.map(reduce):
            reduction.add(part.reduced)
            contexts = smallest([*contexts, *part.contexts])
            tokens.write(part.tokens)
            if alignment is not None and part.alignment is not None:
                alignment = alignment.plus(part.alignment)
        if alignment is not None and not alignment.n_aligned:
            raise InputError(
                f"{teacher} and {student} have no content token in the same place of the same message "
                f"({alignment.n_teacher_unaligned} and {alignment.n_student_unaligned} content tokens); "
                "expected the same conversations, rendered with two templates."
            )
        for key in message_counts_by(comparison.teacher, grouping):
            reduction.ensure(key)
        keys = sorted(reduction.keys(), key=group_order)
        groups = {key: reduction.group(key) for key in keys}
        whole = reduction.total()

        rows = [row_of(key, groups[key], alphas, sampler) for key in keys]
        rows, total = _with_confidence(
            rows, row_of(None, whole, alphas, sampler), [groups[key] for key in keys], whole, alphas, sampler
        )
        report = DiffReport(
            by=grouping,
            alphas=tuple(float(each) for each in alphas),
            groups=tuple(rows),
            total=total,
            n_conversations=reduction.n_conversations,
            n_only_teacher=comparison.pairing.n_only_teacher,
            n_only_student=comparison.pairing.n_only_student,
            skipped=tuple(comparison.pairing.skipped),
            is_self=comparison.is_self,
            contexts=read_contexts(contexts, comparison.teacher),
            noise_floor=floor,
            alignment=alignment,
        )
        if out is not None:
            write_groups(
                output_location(out),
                group_table(grouping, [(row.group, row.flat()) for row in report.groups]),
            )
            tokens.finish()
    return report


def _with_confidence(
    rows: list[DiffRow],
    total: DiffRow,
    groups: list[Group],
    whole: Group,
    alphas: Sequence[float],
    sampler: Sampler | None,
) -> tuple[list[DiffRow], DiffRow]:
    """The rows with confidence limits, and p-values of means that may be 0, adjusted for all groups."""
    if len(rows) > MAX_CONFIDENT_GROUPS:
        groups = [group._replace(clusters=group.clusters._replace(names=[])) for group in groups]
    n_replicates, with_estimates = replicates_for(len(rows)), sampler is not None
    found = [
        confidence_of(group.clusters, alphas, n_replicates, with_estimates=with_estimates) for group in groups
    ]
    # Not as many as the groups need: the total does not depend on them.
    of_all = confidence_of(whole.clusters, alphas, with_estimates=with_estimates)
    limits, limits_of_all = named_confidence(found, of_all)
    rows = [replace(row, confidence=each) for row, each in zip(rows, limits, strict=True)]
    return rows, replace(total, confidence=limits_of_all)


def _check_temperatures(*roots: Path) -> None:
    """Refuse scores of another distribution than the one that estimates are of."""
    for root in roots:
        found = read_manifest(root).settings.get("temperature")
        if found != 1.0:
            raise InputError(
                f"{root}: settings.temperature is {found}; expected 1.0, since `sampled_by` estimates need "
                "scores of the distribution that tokens were sampled from. Score with `temperature=1`, or "
                "leave out `sampled_by`."
            )


def _estimates(batch: ComparedBatch, sampler: Sampler) -> FloatArray:
    """1, k1, k3 and the top-k form of every sampled token, zeros of all others; shape [4, compared]."""
    is_sampled = pc.fill_null(batch.attribution["is_sampled"], False).to_numpy()[batch.rows]
    token_ids = batch.attribution["token_id"].to_numpy()[batch.rows][is_sampled]
    teacher, student = (
        TopK(side.ids[is_sampled], side.logprobs[is_sampled], realised[is_sampled])
        for side, realised in zip(
            batch.topk(),
            (batch.measures["teacher_logprob"], batch.measures["student_logprob"]),
            strict=True,
        )
    )
    found = sampled_kl(teacher, student, token_ids, sampled_by=sampler)
    columns = np.zeros((4, len(batch.rows)))
    columns[:, is_sampled] = np.ones(len(token_ids)), found.k1, found.k3, found.topk
    return columns
