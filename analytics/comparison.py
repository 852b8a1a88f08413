"""Two score datasets compared token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.divergence import Bounds, Divergences, check_alpha, topk_divergences
from tokscore.analytics.overlap import PADDING, FloatArray, TokenError, TopK
from tokscore.analytics.pairing import Pair, Pairing, conversation_name
from tokscore.rendering.dataset import Dataset
from tokscore.rendering.errors import InputError
from tokscore.rendering.tables import DatasetKind

SCORE_COLUMNS = ("logprob", "top_ids", "top_logprobs")
BATCH_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """The tokens of one conversation that both models gave a logprob; arrays have shape [compared].

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        attribution: The asked-for columns for all its tokens, compared or not.
        positions: Indices of the compared tokens, int64.
        teacher_logprobs: Of the realised tokens, float64.
        student_logprobs: Likewise.
        top1_agreement: int8: 1 both models find the same id most likely, 0 not, -1 a list is empty.
        is_beyond_vocabulary: The realised or a listed id is none of the smaller vocabulary's.
        divergences: The intervals.
    """

    conversation_id: str
    branch: int
    attribution: pa.Table
    positions: NDArray[np.int64]
    teacher_logprobs: FloatArray
    student_logprobs: FloatArray
    top1_agreement: NDArray[np.int8]
    is_beyond_vocabulary: NDArray[np.bool_]
    divergences: Divergences


class _Scores(NamedTuple):
    """Score columns of one side for many tokens."""

    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    def rows(self, rows: NDArray[np.int64]) -> _Scores:
        return _Scores(self.logprobs[rows], self.top_ids[rows], self.top_logprobs[rows])


class Comparison:
    """Streams over the conversations of two score datasets; `pairing` holds the counts afterwards.

    Attributes:
        pairing: What is in both datasets and what in one only.
        is_self: The manifests prove the same plan and the same model.
    """

    def __init__(
        self, teacher: Path, student: Path, *, alpha: float = 0.5, columns: Sequence[str] = ("role",)
    ) -> None:
        """Open both datasets.

        Args:
            teacher: A score dataset.
            student: A score dataset of the same conversations.
            alpha: Weight of the teacher in the GJS.
            columns: Token columns to carry along.

        Raises:
            UsageError: alpha is not between 0 and 1.
            InputError: No whole score datasets, or they cannot be compared.
        """
        check_alpha(alpha)
        self._alpha = alpha
        self._columns = list(columns)
        self._teacher = Dataset(teacher, kind=DatasetKind.SCORES)
        self._student = Dataset(student, kind=DatasetKind.SCORES)
        self.pairing = Pairing(
            self._teacher,
            self._student,
            teacher_columns=[*SCORE_COLUMNS, *columns],
            student_columns=SCORE_COLUMNS,
        )
        self._vocab_sizes = (_vocab_size(self._teacher), _vocab_size(self._student))
        self.is_self = _is_same_run(self._teacher, self._student)

    def __iter__(self) -> Iterator[ComparedTokens]:
        """Every shared conversation.

        Raises:
            InputError: Token ids differ, logprobs are none, or no conversation is shared.
        """
        batch: list[Pair] = []
        n_tokens = 0
        for pair in self.pairing:
            batch.append(pair)
            n_tokens += pair.teacher.num_rows
            if n_tokens >= BATCH_TOKENS:
                yield from self._compare(batch)
                batch, n_tokens = [], 0
        if batch:
            yield from self._compare(batch)

    def _compare(self, pairs: list[Pair]) -> Iterator[ComparedTokens]:
        """Several conversations at once: numpy is slow on short arrays."""
        mine = pa.concat_tables([pair.teacher for pair in pairs])
        theirs = pa.concat_tables([pair.student for pair in pairs])
        both = pc.and_(pc.is_valid(mine["logprob"]), pc.is_valid(theirs["logprob"]))
        rows = np.flatnonzero(both.to_numpy())
        token_ids = mine["token_id"].to_numpy()[rows]
        teacher, student = _scores(mine).rows(rows), _scores(theirs).rows(rows)
        starts = np.cumsum([0, *(pair.teacher.num_rows for pair in pairs)])
        try:
            divergences = topk_divergences(
                TopK(teacher.top_ids, teacher.top_logprobs, teacher.logprobs, self._vocab_sizes[0]),
                TopK(student.top_ids, student.top_logprobs, student.logprobs, self._vocab_sizes[1]),
                alpha=self._alpha,
                token_ids=token_ids,
            )
        except TokenError as error:
            at = int(np.searchsorted(starts, rows[error.token], side="right")) - 1
            name = conversation_name(pairs[at].conversation_id, pairs[at].branch)
            root = (self._teacher if error.side == "teacher" else self._student).root
            raise InputError(
                f"{root}: {name}, position {rows[error.token] - starts[at]}: {error.reason}"
            ) from error
        if self.is_self:
            divergences = _without_upper(divergences, _equal_rows(teacher, student))
        beyond = self._beyond_vocabulary(token_ids, teacher, student)
        agreement = _top1_agreement(teacher.top_ids, student.top_ids)

        edges = np.searchsorted(rows, starts)
        for pair, start, first, last in zip(pairs, starts, edges, edges[1:], strict=False):
            yield ComparedTokens(
                pair.conversation_id,
                pair.branch,
                pair.teacher.select(self._columns),
                rows[first:last] - start,
                teacher.logprobs[first:last].astype(np.float64),
                student.logprobs[first:last].astype(np.float64),
                agreement[first:last],
                beyond[first:last],
                Divergences(*(Bounds(*(limit[first:last] for limit in bounds)) for bounds in divergences)),
            )

    def _beyond_vocabulary(
        self, token_ids: NDArray[np.int32], teacher: _Scores, student: _Scores
    ) -> NDArray[np.bool_]:
        smaller = min(self._vocab_sizes)
        beyond: NDArray[np.bool_] = token_ids >= smaller
        for scores in (teacher, student):
            beyond = beyond | (scores.top_ids >= smaller).any(axis=1)
        return beyond


def _vocab_size(dataset: Dataset) -> int:
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
    equal: NDArray[np.bool_] = teacher.logprobs == student.logprobs
    for mine, theirs in zip(teacher[1:], student[1:], strict=True):
        equal = equal & (mine == theirs).all(axis=1)
    return equal


def _without_upper(divergences: Divergences, is_zero: NDArray[np.bool_]) -> Divergences:
    return Divergences(
        *(bounds._replace(upper=np.where(is_zero, 0.0, bounds.upper)) for bounds in divergences)
    )


def _top1_agreement(teacher_ids: NDArray[np.int32], student_ids: NDArray[np.int32]) -> NDArray[np.int8]:
    if not teacher_ids.shape[1] or not student_ids.shape[1]:
        return np.full(len(teacher_ids), -1, np.int8)
    mine, theirs = teacher_ids[:, 0], student_ids[:, 0]
    return np.where((mine == PADDING) | (theirs == PADDING), -1, mine == theirs).astype(np.int8)


def _scores(table: pa.Table) -> _Scores:
    logprobs = table["logprob"].to_numpy()
    ids, logprobs_of_ids = (table[name].combine_chunks() for name in ("top_ids", "top_logprobs"))
    lengths, other = (
        pc.list_value_length(column).fill_null(0).to_numpy() for column in (ids, logprobs_of_ids)
    )
    if not np.array_equal(lengths, other):
        raise InputError("top_ids and top_logprobs differ in length; expected one logprob per id.")
    is_there = np.arange(lengths.max(initial=0)) < lengths[:, None]
    top_ids = np.full(is_there.shape, PADDING, np.int32)
    top_logprobs = np.zeros(is_there.shape, np.float32)
    top_ids[is_there] = ids.flatten().to_numpy()
    top_logprobs[is_there] = logprobs_of_ids.flatten().to_numpy()
    return _Scores(logprobs, top_ids, top_logprobs)
