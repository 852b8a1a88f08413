"""Both models run over the tokens of two datasets, part by part; parts that are there are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.analytics.comparison.pairing import PairBatch, Pairing
from tokscore.analytics.exact.columns import ATTRIBUTION, exact_values
from tokscore.analytics.exact.parts import ExactParts
from tokscore.analytics.exact.stored import StoredLogprobs
from tokscore.dataset.choices import OnError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.scoring.engines.contract import TokenSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.scoring.exact.divergences import ExactTokens

CompareTokens = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, "ExactTokens"]]]
# Starts both models; they are not started where all parts are there. It is given all that they will compare,
# in order and drawn as needed, since one model may run before the other.
StartModels = Callable[[Iterable[TokenSequence]], AbstractContextManager[CompareTokens]]
# Called with (tokens done, tokens in all, tokens that the models have run).
Progress = Callable[[int, int, int], None]

# An interruption costs a part at most. There are about so many, none smaller or larger than what follows.
_N_PARTS = 256
MIN_PART_TOKENS, MAX_PART_TOKENS = 4_096, 2**19


class ExactPart(NamedTuple):
    """Whole conversations, and the exact values of their tokens.

    Attributes:
        pair: The conversations in both datasets.
        rows: Of the tokens that both models scored.
        table: A row for each of them, schema `exact_schema`.
    """

    pair: PairBatch
    rows: NDArray[np.int64]
    table: pa.Table


class _Work(NamedTuple):
    """What one part is made of.

    Attributes:
        part: Its number.
        first: Conversations in the parts before.
        pair: Its conversations.
        rows: Of the tokens that both models scored.
    """

    part: int
    first: int
    pair: PairBatch
    rows: NDArray[np.int64]

    def sequences(self) -> Iterator[TokenSequence]:
        """Those with such tokens; the key is the number of the conversation among all."""
        is_wanted = np.zeros(int(self.pair.starts[-1]), np.bool_)
        is_wanted[self.rows] = True
        ids = self.pair.teacher["token_id"].to_numpy()
        for index, (start, stop) in enumerate(pairwise(self.pair.starts)):
            if is_wanted[start:stop].any():
                yield TokenSequence(self.first + index, ids[start:stop], is_wanted[start + 1 : stop])


class ExactRun:
    """One pass over the conversations that two datasets share.

    Attributes:
        teacher: The teacher's dataset.
        student: The student's.
        parts: Where the values are kept.
        stored: Of both datasets, what this run is held against.
    """

    def __init__(
        self,
        folder: Path,
        teacher: Path | str,
        student: Path | str,
        start: StartModels,
        *,
        alphas: Sequence[float],
        columns: Sequence[str] = (),
        on_error: OnError = OnError.FAIL,
        without: Collection[tuple[str, int]] = (),
        noise_floor: Path | None = None,
        progress: Progress = lambda _done, _total, _run: None,
    ) -> None:
        """Open both datasets.

        Args:
            folder: Of the parts; those of the same run are used, whatever stopped it.
            teacher: Score dataset.
            student: Score dataset of the same conversations.
            start: Starts the models that scored them.
            alphas: Weights of the teacher in the mixtures, as the models compare with.
            columns: Token columns of the teacher to carry along.
            on_error: What a conversation does whose tokens differ or are out of order.
            without: Conversation ids and branches to leave out, such as those that `diff_report` skipped.
            noise_floor: JSON of `tokscore selfcheck`, where an engine differs by more than usual.
            progress: Called as tokens are done.

        Raises:
            InputError: The datasets cannot be compared.
        """
        self.teacher = Dataset(Path(teacher), kind=DatasetKind.SCORES)
        self.student = Dataset(Path(student), kind=DatasetKind.SCORES)
        self.parts = ExactParts(folder, alphas)
        self.stored = tuple(
            StoredLogprobs(dataset, side, noise_floor)
            for dataset, side in ((self.teacher, "teacher"), (self.student, "student"))
        )
        self._start, self._without, self._progress = start, frozenset(without), progress
        self._columns, self._on_error = columns, on_error
        self._pairing()
        self._n_done = self._n_run = 0

    def __iter__(self) -> Iterator[ExactPart]:
        """The parts in order, each written before it is given.

        Raises:
            InputError: A part is damaged, logprobs are not those that a dataset holds, or a conversation is
                bad and errors are not skipped.
            EngineError: A model failed.
        """
        with ExitStack() as stack:
            compare: CompareTokens | None = None
            for work in self._work():
                index, _, pair, rows = work
                if self.parts.has(index):
                    table = self.parts.read(index, pair, rows)
                    self._hold_all(pair, rows, table)
                    self._add_done(int(pair.starts[-1]), 0)
                else:
                    if compare is None:
                        self._progress(self._n_done, self._total, 0)
                        compare = stack.enter_context(self._start(self._ahead()))
                    table = self._measured(work, compare)
                    self.parts.write(index, table)
                yield ExactPart(pair, rows, table)

    def _pairing(self) -> Pairing:
        return Pairing(
            self.teacher,
            self.student,
            teacher_columns=[*dict.fromkeys(["logprob", *ATTRIBUTION, *self._columns])],
            student_columns=["logprob"],
            on_error=self._on_error,
        )

    def _work(self) -> Iterator[_Work]:
        """All parts in order."""
        first = 0
        for index, pair in enumerate(self._pairing().batches(self._part_tokens())):
            left_out = [i for i, place in enumerate(pair.places) if place.key in self._without]
            pair = pair.without(left_out) if left_out else pair
            yield _Work(index, first, pair, _compared(pair))
            first += len(pair.places)

    def _ahead(self) -> Iterator[TokenSequence]:
        """The sequences of the parts that are not there, in order."""
        for work in self._work():
            if not self.parts.has(work.part):
                yield from work.sequences()

    @property
    def _total(self) -> int:
        return self.teacher.n_rows(DatasetKind.SCORES)

    def _part_tokens(self) -> int:
        return min(max(self._total // _N_PARTS, MIN_PART_TOKENS), MAX_PART_TOKENS)

    def _add_done(self, n_tokens: int, n_run: int) -> None:
        self._n_done += n_tokens
        self._n_run += n_run
        self._progress(self._n_done, self._total, self._n_run)

    def _measured(self, work: _Work, compare: CompareTokens) -> pa.Table:
        pair, rows = work.pair, work.rows
        lengths = np.diff(pair.starts)
        bounds = np.searchsorted(rows, pair.starts)
        wanted = np.flatnonzero(np.diff(bounds)).tolist()
        self._add_done(int(lengths.sum() - lengths[wanted].sum()), 0)
        found: dict[int, ExactTokens] = {}
        for key, values in compare(work.sequences()):
            index = key - work.first
            found[index] = values
            # At once: what is wrong here is wrong in the rest.
            mine = rows[bounds[index] : bounds[index + 1]]
            self._hold(pair, index, mine, values.teacher_logprob, values.student_logprob)
            self._add_done(int(lengths[index]), int(lengths[index]))
        return self.parts.rows(
            pair, rows, exact_values([found[index] for index in wanted], self.parts.alphas)
        )

    def _hold_all(self, pair: PairBatch, rows: NDArray[np.int64], table: pa.Table) -> None:
        """Hold a part that is there against both datasets, which may have changed since."""
        columns = [table[name].to_numpy() for name in ("teacher_logprob", "student_logprob")]
        bounds = np.searchsorted(rows, pair.starts)
        for index, (start, stop) in enumerate(pairwise(bounds)):
            self._hold(pair, index, rows[start:stop], *(column[start:stop] for column in columns))

    def _hold(
        self, pair: PairBatch, index: int, rows: NDArray[np.int64], teacher: FloatArray, student: FloatArray
    ) -> None:
        positions = (rows - pair.starts[index]).astype(np.int32)
        sides = ((pair.teacher, teacher), (pair.student, student))
        for stored, (table, found) in zip(self.stored, sides, strict=True):
            logprobs = table["logprob"].to_numpy()[rows].astype(np.float64)
            stored.hold(pair.places[index], positions, logprobs, found)


def _compared(pair: PairBatch) -> NDArray[np.int64]:
    """Rows of the tokens that both models gave a logprob."""
    both = pc.and_(pc.is_valid(pair.teacher["logprob"]), pc.is_valid(pair.student["logprob"]))
    return np.flatnonzero(both.to_numpy())
