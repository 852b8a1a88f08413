"""The numbers of spans, added up by group."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields

import numpy as np

from tokscore.analytics.aligned_text.spans import SpanBatch
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.groups.grouping import GroupKey


@dataclass(frozen=True, slots=True)
class TextRow:
    """A group of spans.

    Attributes:
        group: What their first tokens share in the teacher's dataset; None for all.
        n_spans: Spans that both models scored.
        n_unscored_spans: Spans in which a token has no logprob.
        n_teacher_unaligned: Content tokens of the teacher that are in no span.
        n_characters: Characters of the scored spans.
        n_bytes: Their bytes in UTF-8.
        n_teacher_tokens: The teacher's tokens in them.
        n_student_tokens: The student's.
        teacher_bits_per_byte: -log2 of the teacher's probability of its tokens, by byte of text; None without
            bytes, and infinite, which tables and JSON have as null, where it rules a token out.
        student_bits_per_byte: Likewise.
        log_ratio_per_span: Mean of the teacher's less the student's logprob of a span, in nats.
        log_ratio_per_byte: The same, by byte of text.
        log_ratio_per_teacher_token: By token of the teacher.
        log_ratio_per_student_token: By token of the student.
        share_one_to_one: Share of spans that are one token on both sides.
        n_listed_spans: Of these, the spans at which both sides have a list of the most likely ids.
        top1_agreement: Share of these whose most likely ids have the same bytes.
        list_overlap: Mean share of the teacher's list that the student's has too, by bytes.
        gjs_lower: Mean GJS (alpha 0.5) of these over the texts in both lists, all else taken as one outcome.
        gjs_upper: The same where nothing else is in common; nats.
    """

    group: GroupKey
    n_spans: int
    n_unscored_spans: int
    n_teacher_unaligned: int
    n_characters: int
    n_bytes: int
    n_teacher_tokens: int
    n_student_tokens: int
    teacher_bits_per_byte: float | None
    student_bits_per_byte: float | None
    log_ratio_per_span: float | None
    log_ratio_per_byte: float | None
    log_ratio_per_teacher_token: float | None
    log_ratio_per_student_token: float | None
    share_one_to_one: float | None
    n_listed_spans: int
    top1_agreement: float | None
    list_overlap: float | None
    gjs_lower: float | None
    gjs_upper: float | None

    @property
    def n_tokens(self) -> int:
        """The teacher's content tokens, in spans or not."""
        return self.n_teacher_tokens + self.n_teacher_unaligned

    def flat(self) -> dict[str, int | float | None]:
        """The numbers by name; None where there is no value, or an infinite one."""
        return {name: None if self.is_infinite(name) else getattr(self, name) for name in metric_names()}

    def is_infinite(self, metric: str) -> bool:
        """Whether a number without a value is infinite."""
        value = getattr(self, metric)
        return value is not None and math.isinf(value)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"group": list(self.group) if isinstance(self.group, tuple) else self.group, **self.flat()}


def metric_names() -> tuple[str, ...]:
    """Names of the numbers of a row."""
    return tuple(field.name for field in fields(TextRow) if field.name != "group")


def summed_columns(spans: SpanBatch) -> dict[str, FloatArray]:
    """Values of the scored spans by name, each of shape [scored spans]."""
    kept = spans.is_scored
    lists = spans.lists
    columns = {
        "teacher_logprob": spans.teacher.logprobs,
        "student_logprob": spans.student.logprobs,
        "log_ratio": spans.log_ratios,
        "n_characters": spans.n_characters,
        "n_bytes": spans.n_bytes,
        "n_teacher_tokens": spans.teacher.n_tokens,
        "n_student_tokens": spans.student.n_tokens,
        "n_one_to_one": spans.is_one_to_one,
        "n_listed": lists.has_lists,
        "n_same_top": lists.is_same_top,
        "overlap": np.where(lists.has_lists, lists.overlap, 0.0),
        "gjs_lower": np.where(lists.has_lists, lists.gjs_lower, 0.0),
        "gjs_upper": np.where(lists.has_lists, lists.gjs_upper, 0.0),
    }
    return {name: np.asarray(column[kept], np.float64) for name, column in columns.items()}


def row_of(key: GroupKey, group: Group) -> TextRow:
    """The numbers of a group."""
    sums = defaultdict(float, group.sums)  # none of a group without a scored span
    n_spans, n_bytes = group.n_tokens, sums["n_bytes"]
    log_ratio = sums["log_ratio"]
    return TextRow(
        group=key,
        n_spans=n_spans,
        n_unscored_spans=group.n_rows - n_spans,
        n_teacher_unaligned=group.n_unaligned,
        n_characters=int(sums["n_characters"]),
        n_bytes=int(n_bytes),
        n_teacher_tokens=int(sums["n_teacher_tokens"]),
        n_student_tokens=int(sums["n_student_tokens"]),
        teacher_bits_per_byte=_ratio(-sums["teacher_logprob"] / math.log(2), n_bytes),
        student_bits_per_byte=_ratio(-sums["student_logprob"] / math.log(2), n_bytes),
        log_ratio_per_span=_ratio(log_ratio, n_spans),
        log_ratio_per_byte=_ratio(log_ratio, n_bytes),
        log_ratio_per_teacher_token=_ratio(log_ratio, sums["n_teacher_tokens"]),
        log_ratio_per_student_token=_ratio(log_ratio, sums["n_student_tokens"]),
        share_one_to_one=_ratio(sums["n_one_to_one"], n_spans),
        n_listed_spans=int(sums["n_listed"]),
        top1_agreement=_ratio(sums["n_same_top"], sums["n_listed"]),
        list_overlap=_ratio(sums["overlap"], sums["n_listed"]),
        gjs_lower=_ratio(sums["gjs_lower"], sums["n_listed"]),
        gjs_upper=_ratio(sums["gjs_upper"], sums["n_listed"]),
    )


def _ratio(one: float, other: float) -> float | None:
    return one / other + 0.0 if other else None
