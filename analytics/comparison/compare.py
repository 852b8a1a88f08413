"""Two score datasets compared: the measures of every token that both models scored."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.comparison.content_alignment import AlignedRows, ContentAligner, vocabulary_bytes
from tokscore.analytics.comparison.pairing import PairBatch, Pairing
from tokscore.analytics.divergence.intervals import checked_alphas, measure_tokens
from tokscore.analytics.divergence.measures import TokenMeasures, gaps
from tokscore.analytics.divergence.topk import (
    NOTHING_GIVEN,
    PADDING,
    ULPS,
    UNITS,
    Fault,
    FloatArray,
    Given,
    TopK,
    given_lists,
)
from tokscore.dataset.choices import Align, OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import Place, conversation_name

if TYPE_CHECKING:
    from tokscore.analytics.divergence.topk import Lists

T = TypeVar("T")

GIVEN_COLUMNS = ("at_ids", "at_logprobs")
SCORE_COLUMNS = ("logprob", "rank", "top_ids", "top_logprobs", *GIVEN_COLUMNS)
BATCH_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class ComparedBatch:
    """Whole conversations; arrays have shape [compared], one entry for a token that both models scored.

    Attributes:
        places: The conversations.
        starts: First row of each, and the number of all rows; int64.
        attribution: All rows of the teacher, compared or not, with the columns that were asked for.
        student_table: All rows of the student.
        rows: Indices of the compared tokens, int64.
        student_rows: Of the same tokens among the student's, int64.
        student_starts: First row of each conversation there, and the number of all rows; int64.
        alignment: Where only the content is compared: which rows are the same on both sides.
        teacher_ranks: float64; NaN where there is none.
        student_ranks: Likewise.
        teacher_top: The most likely id, -1 where the list is empty; int32.
        student_top: Likewise.
        is_beyond_vocabulary: The realised or a listed id is none of the smaller vocabulary's.
        measures: Of the compared tokens.
        teacher: Score columns of the teacher.
        student: Of the student.
    """

    places: list[Place]
    starts: NDArray[np.int64]
    attribution: pa.Table
    student_table: pa.Table
    rows: NDArray[np.int64]
    student_rows: NDArray[np.int64]
    student_starts: NDArray[np.int64]
    alignment: AlignedRows | None
    teacher_ranks: FloatArray
    student_ranks: FloatArray
    teacher_top: NDArray[np.int32]
    student_top: NDArray[np.int32]
    is_beyond_vocabulary: NDArray[np.bool_]
    measures: TokenMeasures
    teacher: _Scores
    student: _Scores

    @property
    def conversations(self) -> NDArray[np.int64]:
        """Index of the conversation of every compared token."""
        return np.searchsorted(self.starts, self.rows, side="right") - 1

    @property
    def positions(self) -> NDArray[np.int64]:
        """Position of every compared token in its conversation."""
        positions: NDArray[np.int64] = self.rows - self.starts[self.conversations]
        return positions

    @property
    def student_positions(self) -> NDArray[np.int64]:
        """Position of every compared token in the student's conversation."""
        positions: NDArray[np.int64] = self.student_rows - self.student_starts[self.conversations]
        return positions

    def topk(self) -> tuple[TopK, TopK]:
        """The lists of teacher and student as matrices."""
        return self.teacher.topk(), self.student.topk()


class _Scores(NamedTuple):
    """Score columns of one side for some rows."""

    logprobs: FloatArray
    ranks: FloatArray
    ids: NDArray[np.int32]
    entries: NDArray[np.float32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    given: Given

    def lists(self, vocab_size: int) -> Lists:
        from tokscore.analytics.divergence.topk import Lists

        return Lists(
            self.ids,
            self.entries.astype(np.float64),
            self.starts,
            self.lengths,
            self.logprobs,
            ULPS * UNITS[np.dtype(np.float32)],
            vocab_size,
            *self.given,
        )

    def topk(self) -> TopK:
        ids, logprobs = _matrices(self.ids, self.entries, self.starts, self.lengths)
        if not len(self.given[2]):
            return TopK(ids, logprobs, self.logprobs)
        at_ids, at_logprobs = _matrices(*self.given)
        return TopK(ids, logprobs, self.logprobs, None, at_ids, at_logprobs)

    def top(self) -> NDArray[np.int32]:
        if not len(self.ids):
            return np.full(len(self.starts), -1, np.int32)
        first = self.ids[np.minimum(self.starts, len(self.ids) - 1)]
        return np.where(self.lengths > 0, first, -1).astype(np.int32)

    def has_from(self, smallest: int) -> NDArray[np.bool_]:
        """Whether a list has an id of at least `smallest`."""
        n_before = np.concatenate([[0], np.cumsum(self.ids >= smallest)])
        has: NDArray[np.bool_] = n_before[self.starts + self.lengths] > n_before[self.starts]
        return has


class Comparison:
    """Streams over the conversations of two score datasets; `pairing` holds the counts afterwards.

    Attributes:
        teacher: The teacher's dataset.
        student: The student's dataset.
        pairing: What is in both datasets, what in one only, and what was skipped.
        is_self: The manifests prove the same plan and the same model.
    """

    def __init__(
        self,
        teacher: Path,
        student: Path,
        *,
        alphas: Sequence[float] = (0.5,),
        columns: Sequence[str] = ("role",),
        student_columns: Sequence[str] = (),
        on_error: OnError = OnError.FAIL,
        align: Align = Align.TOKENS,
    ) -> None:
        """Open both datasets.

        Args:
            teacher: A score dataset.
            student: A score dataset of the same conversations.
            alphas: Weights of the teacher in the mixtures.
            columns: Token columns of the teacher to carry along.
            student_columns: Token columns of the student.
            on_error: Whether a bad conversation ends the run or is left out.
            align: Whether all tokens are compared, and must be equal, or only the content that is.

        Raises:
            UsageError: An alpha is not between 0 and 1.
            InputError: No whole score datasets, or they cannot be compared.
        """
        self._alphas = checked_alphas(alphas)
        self.teacher = Dataset(teacher, kind=DatasetKind.SCORES)
        self.student = Dataset(student, kind=DatasetKind.SCORES)
        self.pairing = Pairing(
            self.teacher,
            self.student,
            teacher_columns=[*SCORE_COLUMNS, *columns],
            student_columns=[*SCORE_COLUMNS, *student_columns],
            on_error=on_error,
            align=align,
        )
        self._aligner = ContentAligner(vocabulary_bytes(self.teacher)) if align is Align.CONTENT else None
        self._vocab_sizes = (scored_vocab_size(self.teacher), scored_vocab_size(self.student))
        self.is_self = _is_same_run(self.teacher, self.student)

    def __iter__(self) -> Iterator[ComparedBatch]:
        """Every shared conversation."""
        return self.map(lambda batch: batch)

    def map(self, function: Callable[[ComparedBatch], T]) -> Iterator[T]:
        """A function applied to every batch: its results, in the teacher's order, on all cores.

        Raises:
            InputError: A conversation is bad and errors are not skipped, or no conversation is shared.
        """
        n_threads = os.cpu_count() or 1
        waiting: deque[Future[tuple[T, list[tuple[Place, str]]]]] = deque()

        def finish() -> T:
            made, bad = waiting.popleft().result()
            for place, reason in bad:
                self.pairing.refuse(place, reason)
            return made

        with ThreadPoolExecutor(n_threads) as pool:
            for batch in self.pairing.batches(BATCH_TOKENS):
                waiting.append(pool.submit(self._compare_then, batch, function))
                if len(waiting) > n_threads:
                    yield finish()
            while waiting:
                yield finish()
        self.pairing.check_some_compared()

    def _compare_then(
        self, batch: PairBatch, function: Callable[[ComparedBatch], T]
    ) -> tuple[T, list[tuple[Place, str]]]:
        bad: list[tuple[Place, str]] = []
        while True:
            compared, faulty = self.compare(batch)
            if not faulty:
                return function(compared), bad
            bad += [(batch.places[conversation], reason) for conversation, reason in faulty.items()]
            batch = batch.without(list(faulty))

    def compare(self, batch: PairBatch) -> tuple[ComparedBatch, dict[int, str]]:
        """The batch compared, and what is wrong with conversations by their index."""
        rows, student_rows, alignment = self._rows(batch)
        token_ids = np.ascontiguousarray(batch.teacher["token_id"].to_numpy()[rows])
        teacher = _scores(batch.teacher, rows, batch, batch.starts, self.teacher)
        student = _scores(batch.student, student_rows, batch, batch.student_starts, self.student)
        measures, faults = measure_tokens(
            teacher.lists(self._vocab_sizes[0]),
            student.lists(self._vocab_sizes[1]),
            token_ids,
            self._alphas,
            (teacher.logprobs, student.logprobs),
            n_threads=1,
        )
        if self.is_self:
            _clear_upper(measures, _equal_rows(teacher, student))
        compared = ComparedBatch(
            batch.places,
            batch.starts,
            batch.teacher,
            batch.student,
            rows,
            student_rows,
            batch.student_starts,
            alignment,
            teacher.ranks,
            student.ranks,
            teacher.top(),
            student.top(),
            self._beyond_vocabulary(token_ids, teacher, student),
            measures,
            teacher,
            student,
        )
        return compared, self._faulty(compared, faults)

    def _rows(self, batch: PairBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], AlignedRows | None]:
        """Rows of the teacher and of the student that are compared, and how they were found."""
        is_scored = [pc.is_valid(table["logprob"]).to_numpy() for table in (batch.teacher, batch.student)]
        if self._aligner is None:
            rows = np.flatnonzero(is_scored[0] & is_scored[1])
            return rows, rows, None
        found = self._aligner.align(batch.teacher, batch.starts, batch.student, batch.student_starts)
        both = is_scored[0][found.teacher] & is_scored[1][found.student]
        return found.teacher[both], found.student[both], found

    def _faulty(self, compared: ComparedBatch, faults: Mapping[int, Fault]) -> dict[int, str]:
        found: dict[int, str] = {}
        if not faults:
            return found
        positions = {"teacher": compared.positions, "student": compared.student_positions}
        conversations = compared.conversations
        for index, fault in sorted(faults.items()):
            conversation = int(conversations[index])
            if conversation not in found:
                root = (self.teacher if fault.side == "teacher" else self.student).root
                name = conversation_name(*compared.places[conversation].key)
                position = positions[fault.side][index]
                found[conversation] = f"{root}: {name}, position {position}: {fault.reason}"
        return found

    def _beyond_vocabulary(
        self, token_ids: NDArray[np.int32], teacher: _Scores, student: _Scores
    ) -> NDArray[np.bool_]:
        smaller = min(self._vocab_sizes)
        beyond: NDArray[np.bool_] = token_ids >= smaller
        if self._vocab_sizes[0] == self._vocab_sizes[1]:
            return beyond
        return beyond | teacher.has_from(smaller) | student.has_from(smaller)


def _matrices(
    ids: NDArray[np.int32], values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Lists as rows of two matrices, padded."""
    is_there = np.arange(lengths.max(initial=0)) < lengths[:, None]
    places = (starts[:, None] + np.arange(is_there.shape[1]))[is_there]
    matrix = np.full(is_there.shape, PADDING, np.int32)
    logprobs = np.zeros(is_there.shape, np.float32)
    matrix[is_there], logprobs[is_there] = ids[places], values[places]
    return matrix, logprobs


def scored_vocab_size(dataset: Dataset) -> int:
    """Width of the logits of the model that scored a dataset.

    Raises:
        InputError: Its manifest names none.
    """
    model = dataset.manifest.model
    if model is None:
        raise InputError(
            f"{dataset.root} does not say which model scored it; expected a model in its manifest."
        )
    return model.vocab_size


def _is_same_run(teacher: Dataset, student: Dataset) -> bool:
    mine, theirs = teacher.manifest, student.manifest
    return (
        mine.plan_hash == theirs.plan_hash
        and mine.model is not None
        and mine.model.sha256 is not None
        and mine.model == theirs.model
    )


def _equal_rows(teacher: _Scores, student: _Scores) -> NDArray[np.bool_]:
    """Where both runs stored the same bits; the same model on other hardware need not."""
    equal: NDArray[np.bool_] = (teacher.logprobs == student.logprobs) & (teacher.lengths == student.lengths)
    if not np.array_equal(teacher.starts, student.starts) or len(teacher.ids) != len(student.ids):
        return np.zeros_like(equal)
    differs = (teacher.ids != student.ids) | (teacher.entries != student.entries)
    n_before = np.concatenate([[0], np.cumsum(differs)])
    equal &= n_before[teacher.starts + teacher.lengths] == n_before[teacher.starts]
    return equal


def _clear_upper(measures: TokenMeasures, is_zero: NDArray[np.bool_]) -> None:
    """Set the upper limits of divergences to 0; entropies keep theirs."""
    for measure in gaps(measures.alphas):
        if measure.is_interval:
            measures.columns[measure.columns[1]][is_zero] = 0.0


def _scores(
    table: pa.Table, rows: NDArray[np.int64], batch: PairBatch, starts: NDArray[np.int64], dataset: Dataset
) -> _Scores:
    def lists(ids_name: str, entries_name: str) -> tuple[Any, Any, NDArray[np.int64], NDArray[np.int64]]:
        ids, entries = (table[name].combine_chunks() for name in (ids_name, entries_name))
        lengths, other = (pc.list_value_length(column).fill_null(0).to_numpy() for column in (ids, entries))
        if not np.array_equal(lengths, other):
            row = int(np.flatnonzero(lengths != other)[0])
            conversation = int(np.searchsorted(starts, row, side="right")) - 1
            name = conversation_name(*batch.places[conversation].key)
            raise InputError(
                f"{dataset.root}: {name}, position {row - starts[conversation]}: {ids_name} has "
                f"{lengths[row]} entries and {entries_name} {other[row]}; expected one logprob per id. "
                "Score it again."
            )
        # `flatten` leaves out what nulls hide, so that lengths say where every list starts.
        firsts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1]
        found = (column.flatten().to_numpy() for column in (ids, entries))
        return (*found, firsts[rows], lengths[rows].astype(np.int64))

    has_given = table["at_ids"].null_count < len(table)
    return _Scores(
        np.ascontiguousarray(table["logprob"].to_numpy()[rows], np.float64),
        table["rank"].to_numpy()[rows].astype(np.float64),
        *lists("top_ids", "top_logprobs"),
        given_lists(*lists("at_ids", "at_logprobs")) if has_given else NOTHING_GIVEN,
    )
