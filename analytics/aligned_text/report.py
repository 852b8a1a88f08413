"""Two score datasets of different tokenizers, compared by the text of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokscore.analytics.aligned_text.lists import LIST_COLUMNS
from tokscore.analytics.aligned_text.rows import TextRow, row_of, summed_columns
from tokscore.analytics.aligned_text.spans import SpanBatch, SpanFinder
from tokscore.analytics.aligned_text.tables import SPANS_NAME, span_table
from tokscore.analytics.comparison.content_alignment import AlignedRows, vocabulary_bytes
from tokscore.analytics.comparison.pairing import Pairing, Skipped
from tokscore.analytics.comparison.reduction import Reduced, Reduction, reduce_batch
from tokscore.analytics.comparison.tables import TokenTable, write_groups
from tokscore.analytics.groups.grouping import Grouping, group_order, parse_group_by
from tokscore.analytics.groups.tables import group_table
from tokscore.dataset.choices import Align, OnError, choose
from tokscore.dataset.errors import InputError
from tokscore.dataset.files import PathName, output_location
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind

BATCH_TOKENS = 32_768


class DifferingText(NamedTuple):
    """A field whose texts are not the same on both sides, so that it has no spans.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        message_index: Of the message.
        source: The field.
    """

    conversation_id: str
    branch: int
    message_index: int
    source: str


@dataclass(frozen=True, slots=True)
class TextReport:
    """The comparison.

    Attributes:
        by: What the groups share.
        groups: One row a group.
        total: All spans together.
        n_conversations: Conversations (or branches) compared.
        n_only_teacher: Those that the student's dataset lacks.
        n_only_student: Those that the teacher's dataset lacks.
        n_student_unaligned: Content tokens of the student that are in no span.
        skipped: Conversations that were left out for what is wrong with them.
        differing: Fields whose texts differ.
    """

    by: Grouping
    groups: tuple[TextRow, ...]
    total: TextRow
    n_conversations: int
    n_only_teacher: int
    n_only_student: int
    n_student_unaligned: int
    skipped: tuple[Skipped, ...]
    differing: tuple[DifferingText, ...]

    def rows(self) -> list[TextRow]:
        """The groups and the total."""
        return [*self.groups, self.total]

    def why_missing(self, row: TextRow, metric: str) -> str:
        """Why a number of a row is not there."""
        if not row.n_spans:
            return "the group has no span that both models scored"
        if metric in ("top1_agreement", "list_overlap", "gjs_lower", "gjs_upper"):
            return "no span is one token on both sides with a list on both"
        return f"a model rules a token out, so that {metric} is infinite"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "n_conversations": self.n_conversations,
            "n_only_teacher": self.n_only_teacher,
            "n_only_student": self.n_only_student,
            "n_student_unaligned": self.n_student_unaligned,
            "n_skipped": len(self.skipped),
            "skipped": [each._asdict() for each in self.skipped],
            "differing": [each._asdict() for each in self.differing],
        }


class TextComparison:
    """Streams over the spans of two score datasets; `pairing` holds the counts afterwards.

    Attributes:
        pairing: What is in both datasets, what in one only, and what was skipped.
    """

    def __init__(
        self,
        teacher: Path,
        student: Path,
        *,
        columns: Sequence[str] = (),
        on_error: OnError = OnError.FAIL,
    ) -> None:
        """Open both datasets.

        Args:
            teacher: A score dataset.
            student: One of the same conversations; its tokenizer may be another.
            columns: Token columns of the teacher to carry along.
            on_error: Whether a bad conversation ends the run or is left out.

        Raises:
            InputError: No whole score datasets, or their temperatures or logprob modes differ.
        """
        datasets = [Dataset(root, kind=DatasetKind.SCORES) for root in (teacher, student)]
        for dataset in datasets:
            if not vocabulary_bytes(dataset):
                raise InputError(
                    f"{dataset.root} does not know the bytes of its tokens, by which texts are compared."
                )
        self.pairing = Pairing(
            *datasets,
            teacher_columns=["logprob", *LIST_COLUMNS, *columns],
            student_columns=["logprob", *LIST_COLUMNS],
            on_error=on_error,
            align=Align.TEXT,
        )
        self._finder = SpanFinder(*(vocabulary_bytes(dataset) for dataset in datasets))

    def __iter__(self) -> Iterator[SpanBatch]:
        """The spans of every shared conversation.

        Raises:
            InputError: A conversation is bad and errors are not skipped, or none is shared.
        """
        for batch in self.pairing.batches(BATCH_TOKENS):
            if batch.places:
                yield self._finder.find(batch)


def text_report(
    teacher: PathName,
    student: PathName,
    *,
    by: str | Sequence[str] = "role",
    on_error: OnError | str = OnError.FAIL,
    out: PathName | None = None,
) -> TextReport:
    """Compare two score datasets of the same conversations, rendered with different tokenizers.

    Args:
        teacher: The score dataset of one model.
        student: That of the other.
        by: The columns that make the groups, as `groups.parse_group_by` takes it; a span belongs to the group
            of its first token in the teacher's dataset.
        on_error: Whether a bad conversation ends the run or is left out.
        out: Directory for spans.parquet and groups.parquet, new or empty.

    Raises:
        UsageError: `by` or `out` is not allowed.
        InputError: No whole score datasets; temperatures or logprob modes differ; no conversation, or none
            of its text, is shared.
    """
    grouping = parse_group_by(by)
    comparison = TextComparison(
        Path(teacher),
        Path(student),
        columns=grouping.token_columns,
        on_error=choose(OnError, on_error, "on_error"),
    )
    folder = None if out is None else output_location(out)
    reduction = Reduction([], grouping)
    differing: list[DifferingText] = []
    n_student_unaligned = 0
    with TokenTable(folder, SPANS_NAME) as table:
        for spans in comparison:
            reduction.add(_reduced(spans, grouping))
            n_student_unaligned += len(spans.student.alone)
            keys = [place.key for place in spans.batch.places]
            differing += [
                DifferingText(*keys[at], message, source) for at, message, source in spans.differing
            ]
            if folder is not None:
                table.write(span_table(spans))
        total = row_of(None, reduction.total())
        if not total.n_spans + total.n_unscored_spans:
            raise InputError(
                f"{teacher} and {student} have no text in common "
                f"({total.n_teacher_unaligned} and {n_student_unaligned} content tokens); expected the same "
                "conversations, rendered with two tokenizers."
            )
        in_order = sorted(reduction.keys(), key=group_order)
        groups = tuple(row_of(key, reduction.group(key)) for key in in_order)
        if folder is not None:
            write_groups(folder, group_table(grouping, [(row.group, row.flat()) for row in groups]))
            table.finish()
    return TextReport(
        by=grouping,
        groups=groups,
        total=total,
        n_conversations=reduction.n_conversations,
        n_only_teacher=comparison.pairing.n_only_teacher,
        n_only_student=comparison.pairing.n_only_student,
        n_student_unaligned=n_student_unaligned,
        skipped=tuple(comparison.pairing.skipped),
        differing=tuple(differing),
    )


def _reduced(spans: SpanBatch, grouping: Grouping) -> Reduced:
    rows, batch = spans.teacher.first, spans.batch
    none = np.zeros(0, np.int64)
    return reduce_batch(
        summed_columns(spans),
        rows[spans.is_scored],
        batch.places,
        batch.starts,
        batch.teacher,
        grouping,
        AlignedRows(rows, none, spans.teacher.alone, none),
    )
