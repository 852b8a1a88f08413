"""Score datasets read conversation by conversation, alone or beside another model's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.analytics.comparison.compare import BATCH_TOKENS, GIVEN_COLUMNS, ComparedBatch, Comparison
from tokscore.analytics.comparison.pairing import PairBatch
from tokscore.analytics.comparison.sums import summed_columns
from tokscore.analytics.divergence.measures import Bounds
from tokscore.analytics.recorded.rows import mismatch_columns
from tokscore.analytics.report.conversation.scored import (
    SCORE_COLUMNS,
    MessageHeader,
    ScoredConversation,
    model_scores,
)
from tokscore.analytics.report.grouping import GROUPED_COLUMNS
from tokscore.analytics.report.spread import limit_columns
from tokscore.analytics.report.totals import BatchTotals, batch_totals
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError, agreeing
from tokscore.dataset.reading import Dataset, StoredConversation
from tokscore.dataset.rows import STORED_COLUMNS, stored_tokens
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import TokenRows, conversation_name, token_batches

_CLOSE_IDS = 10_000
_COLUMNS = (*dict.fromkeys(["position", *STORED_COLUMNS, *SCORE_COLUMNS, *GROUPED_COLUMNS]),)
# Where two datasets are compared.
_COMPARED_COLUMNS = (*_COLUMNS, *GIVEN_COLUMNS)


def open_scores(path: Path | str) -> Dataset:
    """The score dataset at `path`.

    Raises:
        InputError: There is none, or it is not whole.
    """
    return Dataset(Path(path), kind=DatasetKind.SCORES)


def read_batches(dataset: Dataset) -> Iterator[tuple[BatchTotals, list[ScoredConversation]]]:
    """The conversations of one score dataset in plan order, in batches with their sums.

    Raises:
        InputError: A table is damaged, or a list and its logprobs differ in length.
    """
    known = _all_stored(dataset)
    for places, starts, table in token_batches(dataset.places(), dataset.token_rows(_COLUMNS), BATCH_TOKENS):
        rows = np.flatnonzero(pc.is_valid(table["logprob"]).to_numpy())
        columns = {
            name: table[name].cast(pa.float64()).to_numpy()[rows] for name in ("logprob", "rank", "entropy")
        }
        ranks, entropies = columns["rank"], columns["entropy"]
        counts = {
            "n_ranked": ~np.isnan(ranks),
            "n_rank1": ranks == 1,
            "n_entropy": ~np.isnan(entropies),
        }
        values = {
            "logprob": columns["logprob"],
            "entropy": np.nan_to_num(entropies),
            **{name: is_one.astype(np.float64) for name, is_one in counts.items()},
        }
        # Before the sums, as these do not say where a NaN is.
        scored = [_scored(next(known), table.slice(start, stop - start)) for start, stop in pairwise(starts)]
        yield batch_totals(values, rows, places, starts, table), scored


def has_recorded(dataset: Dataset) -> bool:
    """Whether any token of a score dataset carries a logprob of its input."""
    columns = dataset.batches(dataset.manifest.kind.value, ["recorded_logprob"])
    return any(batch["recorded_logprob"].null_count < batch.num_rows for batch in columns)


def read_recorded_batches(
    dataset: Dataset, skipped: Collection[tuple[str, int]] = ()
) -> Iterator[tuple[BatchTotals, list[ScoredConversation]]]:
    """As `read_batches`, with the sums of `mismatch_columns`.

    Args:
        dataset: Whose input carried logprobs.
        skipped: Ids and branches of conversations to leave out.
    """
    known = (each for each in _all_stored(dataset) if each.place.key not in skipped)
    kept = (place for place in dataset.places() if place.key not in skipped)
    for places, starts, table in token_batches(kept, dataset.token_rows(_COLUMNS), BATCH_TOKENS):
        both = pc.and_(pc.is_valid(table["logprob"]), pc.is_valid(table["recorded_logprob"]))
        rows = np.flatnonzero(both.to_numpy())
        recorded, scored = (
            table[name].cast(pa.float64()).to_numpy()[rows] for name in ("recorded_logprob", "logprob")
        )
        is_sampled = pc.fill_null(table["is_sampled"], False).to_numpy()[rows]
        conversations = [
            _scored(next(known), table.slice(start, stop - start)) for start, stop in pairwise(starts)
        ]
        values = mismatch_columns(recorded, scored, is_sampled)
        yield batch_totals(values, rows, places, starts, table), conversations


def read_scored(dataset: Dataset) -> Iterator[ScoredConversation]:
    """Every conversation of one score dataset, in plan order; errors as of `read_batches`."""
    for _, conversations in read_batches(dataset):
        yield from conversations


def _all_stored(dataset: Dataset) -> Iterator[StoredConversation]:
    for part in dataset.manifest.parts:
        yield from dataset.stored(part.index)


class ComparedDatasets:
    """Streams over the conversations that two score datasets share, as `diff` compares them.

    Attributes:
        comparison: The comparison.
    """

    def __init__(
        self,
        teacher: Path | str,
        student: Path | str,
        *,
        alpha: float = 0.5,
        on_error: OnError = OnError.FAIL,
    ) -> None:
        """Open both.

        Raises:
            UsageError: alpha is not between 0 and 1.
            InputError: No whole score datasets, or they cannot be compared.
        """
        self._alpha = alpha
        self.comparison = Comparison(
            Path(teacher),
            Path(student),
            alphas=[alpha],
            columns=_COLUMNS,
            student_columns=["entropy"],
            on_error=on_error,
        )

    def batches(self) -> Iterator[tuple[BatchTotals, list[ScoredConversation]]]:
        """Every shared conversation in the teacher's order, in batches with their sums.

        Raises:
            InputError: Token ids differ, logprobs are none, or no conversation is shared.
        """

        def add_up(batch: ComparedBatch) -> tuple[BatchTotals, ComparedBatch]:
            totals = batch_totals(
                summed_columns(batch),
                batch.rows,
                batch.places,
                batch.starts,
                batch.attribution,
                sketched=limit_columns(batch, self._alpha),
            )
            return totals, batch

        known = _all_stored(self.comparison.teacher)
        for totals, batch in self.comparison.map(add_up):
            stored = [next(each for each in known if each.place.key == place.key) for place in batch.places]
            yield totals, self._conversations(batch, stored)

    def __iter__(self) -> Iterator[ScoredConversation]:
        """Every shared conversation; errors as of `batches`."""
        for _, conversations in self.batches():
            yield from conversations

    def find(self, conversation_id: str, branch: int | None = None) -> ScoredConversation:
        """One shared conversation.

        Raises:
            InputError: A dataset has no such conversation, token ids differ, or logprobs are none.
        """
        teacher, student = self.comparison.teacher, self.comparison.student
        mine = find_stored(teacher, conversation_id, branch)
        theirs = find_stored(student, conversation_id, mine.place.branch)
        table = _rows_of(mine, teacher.token_rows([*_COMPARED_COLUMNS, "token_id"]))
        other = _rows_of(theirs, student.token_rows([*_COMPARED_COLUMNS, "token_id"]))
        if not table["token_id"].equals(other["token_id"]):
            raise InputError(
                f"{conversation_name(*mine.place.key)} has other token ids in {student.root} "
                f"({other.num_rows:,}) than in {teacher.root} ({table.num_rows:,}); expected equal ids. "
                "Score both models on the same rendered dataset."
            )
        starts = np.array([0, table.num_rows])
        batch, faulty = self.comparison.compare(PairBatch([mine.place], starts, table, other, starts))
        if faulty:
            raise InputError(faulty[0])
        return self._conversations(batch, [mine])[0]

    def _conversations(
        self, batch: ComparedBatch, stored: Sequence[StoredConversation]
    ) -> list[ScoredConversation]:
        limits = np.full((3, int(batch.starts[-1])), np.nan)
        limits[:, batch.rows] = batch.measures.of("gjs", self._alpha)
        return [
            replace(
                _scored(each, batch.attribution.slice(start, stop - start)),
                student=model_scores(batch.student_table.slice(start, stop - start)),
                gjs=Bounds(*limits[:, start:stop]),
            )
            for each, start, stop in zip(stored, batch.starts, batch.starts[1:], strict=False)
        ]


def find_scored(dataset: Dataset, conversation_id: str, branch: int | None = None) -> ScoredConversation:
    """One conversation of a score dataset, read without the others; arguments and errors of `find_stored`."""
    stored = find_stored(dataset, conversation_id, branch)
    return _scored(stored, _rows_of(stored, dataset.token_rows(_COLUMNS)))


def find_stored(dataset: Dataset, conversation_id: str, branch: int | None = None) -> StoredConversation:
    """The entry of one conversation.

    Args:
        dataset: Of scores.
        conversation_id: As in its conversations table.
        branch: The branch; the first one if None.

    Raises:
        InputError: There is none; the message names close ids or the branches there are.
    """
    branches: list[int] = []
    known: list[str] = []
    for place in dataset.places():
        if len(known) < _CLOSE_IDS:
            known.append(place.conversation_id)
        if place.conversation_id == conversation_id:
            if branch is None or place.branch == branch:
                return next(each for each in dataset.stored(place.part) if each.place == place)
            branches.append(place.branch)
    if branches:
        raise InputError(
            f"{dataset.root} has no branch {branch} of conversation {conversation_id!r}; "
            f"there are {', '.join(map(str, branches))}."
        )
    close = get_close_matches(conversation_id, known, n=3, cutoff=0) or known[:3]
    n = dataset.n_conversations()
    raise InputError(
        f"{dataset.root} has no conversation {conversation_id!r}; there {agreeing(n, 'is', 'are')} {n:,}, "
        f"such as {', '.join(close)}."
    )


def _rows_of(stored: StoredConversation, rows: TokenRows) -> pa.Table:
    return rows.read_checked([stored.place], np.array([0, stored.place.n_tokens]))


def _scored(stored: StoredConversation, table: pa.Table) -> ScoredConversation:
    row = stored.row
    tokens = stored_tokens(table, stored.messages)
    return ScoredConversation(
        conversation_id=row.conversation_id,
        branch=row.branch,
        source_file=row.source_file,
        source_line=row.source_line,
        status=row.status,
        messages=tuple(MessageHeader(each.role, each.tool_name, each.flags) for each in stored.messages),
        token_ids=tokens.token_ids,
        message_indices=tokens.message_indices,
        positions_in_message=table["position_in_message"].to_numpy(),
        sources=tokens.sources,
        source_codes=tokens.source_codes.astype(np.int64),
        is_content=tokens.is_content,
        sampled=tokens.sampled_mask,
        teacher=model_scores(table),
        recorded=None if tokens.recorded_logprobs is None else tokens.recorded_logprobs.astype(np.float64),
    )
