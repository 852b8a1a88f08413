"""Spans of the text of messages, and what each side makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.aligned_text.lists import ListAgreement, common_ids, compare_lists
from tokscore.analytics.aligned_text.text_spans import TextSpans, begins_character, text_spans
from tokscore.analytics.comparison.content_alignment import content_fields, field_text, runs_of
from tokscore.analytics.comparison.pairing import PairBatch
from tokscore.analytics.divergence.topk import FloatArray

IndexArray = NDArray[np.int64]
# Characters of ids without bytes; those of the student lie behind all of the teacher's.
UNKNOWN = (0x100, 0x80000)


class SideSpans(NamedTuple):
    """One side of spans; arrays of shape [spans].

    Attributes:
        first: Row of the first token.
        last: Of the last.
        n_tokens: Tokens; others, of a template, may lie between them.
        logprobs: Sum of theirs, float64, in nats; NaN where one has none.
        alone: Rows of content tokens that are in no span, int64 [tokens].
    """

    first: IndexArray
    last: IndexArray
    n_tokens: IndexArray
    logprobs: FloatArray
    alone: IndexArray


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Spans of whole conversations, in the teacher's order.

    Attributes:
        batch: The conversations.
        teacher: Their tokens there.
        student: And there.
        n_bytes: Of the text, UTF-8, int64 [spans].
        n_characters: int64 [spans].
        differing: Index of the conversation, message and field of texts that do not fit together.
        lists: The most likely ids at spans that are one token on both sides; none at others.
    """

    batch: PairBatch
    teacher: SideSpans
    student: SideSpans
    n_bytes: IndexArray
    n_characters: IndexArray
    differing: list[tuple[int, int, str]]
    lists: ListAgreement

    @property
    def is_scored(self) -> NDArray[np.bool_]:
        """Whether both sides have all logprobs of a span."""
        scored: NDArray[np.bool_] = ~(np.isnan(self.teacher.logprobs) | np.isnan(self.student.logprobs))
        return scored

    @property
    def is_one_to_one(self) -> NDArray[np.bool_]:
        """Whether a span is one token on both sides."""
        return _is_one_to_one(self.teacher, self.student)

    @property
    def log_ratios(self) -> FloatArray:
        """Teacher's less student's logprob; 0 where both are -inf."""
        one, other = self.teacher.logprobs, self.student.logprobs
        ratios: FloatArray = np.subtract(one, other, out=np.zeros(len(one)), where=one != other)
        return ratios

    @property
    def conversations(self) -> IndexArray:
        """Index of the conversation of each span."""
        return np.searchsorted(self.batch.starts, self.teacher.first, side="right") - 1


class _Found(NamedTuple):
    """Spans of one field."""

    spans: TextSpans
    rows: IndexArray
    other_rows: IndexArray
    raw: str


class SpanFinder:
    """Finds the spans of conversations that two tokenizers rendered."""

    def __init__(self, teacher: Mapping[int, bytes], student: Mapping[int, bytes]) -> None:
        """Take the bytes of the ids of both; an id without bytes is like no other."""
        self._texts = tuple(
            {token_id: raw.decode("latin-1") for token_id, raw in each.items()} for each in (teacher, student)
        )
        self._common = common_ids(teacher, student)

    def find(self, batch: PairBatch) -> SpanBatch:
        """The spans of every content field."""
        ids = [table["token_id"].to_numpy() for table in (batch.teacher, batch.student)]
        mine, theirs = content_fields(batch.teacher, batch.starts, batch.student, batch.student_starts)
        found: list[_Found] = []
        differing: list[tuple[int, int, str]] = []
        for key, rows in mine.items():
            others = theirs.get(key)
            if others is None:
                continue
            parts = list(self._parts(rows, ids[0], others, ids[1]))
            if parts:
                found += parts
            else:
                source = batch.teacher["source"][int(rows[0])].as_py()
                differing.append((key[0], key[1], source))
        found.sort(key=lambda each: int(each.rows[each.spans.teacher[0]]))
        sides = (
            _side(batch.teacher, [(each.spans.teacher, each.rows) for each in found], mine),
            _side(batch.student, [(each.spans.student, each.other_rows) for each in found], theirs),
        )
        is_one = _is_one_to_one(*sides)
        lists = compare_lists(
            batch.teacher, sides[0].first[is_one], batch.student, sides[1].first[is_one], self._common
        )
        return SpanBatch(batch, *sides, *_sizes(found), differing, _spread(lists, is_one))

    def _parts(
        self, rows: IndexArray, ids: NDArray[np.int32], others: IndexArray, other_ids: NDArray[np.int32]
    ) -> Iterator[_Found]:
        """Spans of one field: run by run where it has as many on both sides, else all of it at once."""
        runs, other_runs = runs_of(rows), runs_of(others)
        if 1 < len(runs) == len(other_runs):
            parts = [
                self._part(run, ids, other, other_ids) for run, other in zip(runs, other_runs, strict=True)
            ]
            whole = [part for part in parts if part is not None]
            if len(whole) == len(parts):
                yield from (part for part in whole if part.spans.n_spans)
                return
        part = self._part(rows, ids, others, other_ids)
        if part is not None and part.spans.n_spans:
            yield part

    def _part(
        self, rows: IndexArray, ids: NDArray[np.int32], others: IndexArray, other_ids: NDArray[np.int32]
    ) -> _Found | None:
        mine = field_text(ids[rows], self._texts[0], UNKNOWN[0])
        theirs = field_text(other_ids[others], self._texts[1], UNKNOWN[1])
        spans = text_spans(mine, theirs)
        return None if spans is None else _Found(spans, rows, others, mine.raw)


def _is_one_to_one(teacher: SideSpans, student: SideSpans) -> NDArray[np.bool_]:
    is_one: NDArray[np.bool_] = (teacher.n_tokens == 1) & (student.n_tokens == 1)
    return is_one


def _spread(lists: ListAgreement, is_one: NDArray[np.bool_]) -> ListAgreement:
    """The same for all spans, of which others have none."""
    columns: dict[str, Any] = {}  # Any: arrays of several types
    for name, column in lists._asdict().items():
        columns[name] = np.zeros(len(is_one), column.dtype)
        columns[name][is_one] = column
    return ListAgreement(**columns)


def _side(
    table: pa.Table,
    found: Sequence[tuple[IndexArray, IndexArray]],
    fields: Mapping[tuple[int, ...], IndexArray],
) -> SideSpans:
    none = np.zeros(0, np.int64)
    logprobs = pc.cast(table["logprob"], pa.float64()).to_numpy()
    sums = [
        np.add.reduceat(logprobs[rows[: bounds[-1]]], bounds[:-1]) if len(bounds) > 1 else np.zeros(0)
        for bounds, rows in found
    ]
    paired = np.concatenate([none, *(rows[bounds[0] : bounds[-1]] for bounds, rows in found)])
    everything = np.concatenate([none, *fields.values()])
    return SideSpans(
        np.concatenate([none, *(rows[bounds[:-1]] for bounds, rows in found)]),
        np.concatenate([none, *(rows[bounds[1:] - 1] for bounds, rows in found)]),
        np.concatenate([none, *(np.diff(bounds) for bounds, _ in found)]),
        np.concatenate([np.zeros(0), *sums]),
        np.setdiff1d(everything, paired, assume_unique=True),
    )


def _sizes(found: Sequence[_Found]) -> tuple[IndexArray, IndexArray]:
    """Bytes and characters of each span."""
    n_bytes, n_characters = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for each in found:
        before = np.concatenate([[0], np.cumsum(begins_character(each.raw))])
        n_bytes.append(np.diff(each.spans.starts))
        n_characters.append(np.diff(before[each.spans.starts]))
    return np.concatenate(n_bytes), np.concatenate(n_characters)
