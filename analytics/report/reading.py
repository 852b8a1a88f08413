"""Score datasets read conversation by conversation, alone or beside another model's."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokscore.analytics.comparison.compare import Comparison, scored_vocab_size
from tokscore.analytics.comparison.pairing import Pairing, Skipped
from tokscore.analytics.divergence.intervals import check_alpha
from tokscore.analytics.report.scored import (
    SCORE_COLUMNS,
    Comparing,
    Message,
    ModelScores,
    ScoredConversation,
    model_scores,
)
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset, StoredConversation
from tokscore.dataset.rows import STORED_COLUMNS, stored_tokens
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import TokenRows

_BATCH_TOKENS = 16_384
_CLOSE_IDS = 10_000
_COLUMNS = ("position", "position_in_message", *STORED_COLUMNS, *SCORE_COLUMNS)


def open_scores(path: Path | str) -> Dataset:
    """The score dataset at `path`.

    Raises:
        InputError: There is none, or it is not whole.
    """
    return Dataset(Path(path), kind=DatasetKind.SCORES)


def read_scored(dataset: Dataset) -> Iterator[ScoredConversation]:
    """Every conversation of one score dataset, in plan order.

    Raises:
        InputError: A table is damaged, or a list and its logprobs differ in length.
    """
    rows = dataset.token_rows(_COLUMNS)
    for part in dataset.manifest.parts:
        for stored in dataset.stored(part.index):
            yield _scored(stored, _rows_of(stored, rows))


class ComparedDatasets:
    """Streams over the conversations that two score datasets share.

    Attributes:
        teacher: The dataset of one model.
        student: That of the other.
        pairing: What is in both and what in one only; final after the iteration.
        comparing: How they are compared.
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
        self.teacher, self.student = open_scores(teacher), open_scores(student)
        check_alpha(alpha)
        is_self = Comparison(Path(teacher), Path(student)).is_self
        sizes = [scored_vocab_size(dataset) for dataset in (self.teacher, self.student)]
        self.comparing = Comparing(alpha, (sizes[0], sizes[1]), is_self)
        self.pairing = Pairing(
            self.teacher,
            self.student,
            teacher_columns=_COLUMNS,
            student_columns=SCORE_COLUMNS,
            on_error=on_error,
        )
        self._on_error = on_error

    def __iter__(self) -> Iterator[ScoredConversation]:
        """Every shared conversation in the teacher's order, compared.

        Raises:
            InputError: Token ids differ, logprobs are none, or no conversation is shared.
        """
        known = (each for part in self.teacher.manifest.parts for each in self.teacher.stored(part.index))
        for batch in self.pairing.batches(_BATCH_TOKENS):
            waiting: list[ScoredConversation] = []
            students: list[ModelScores] = []
            for place, start, stop in zip(batch.places, batch.starts, batch.starts[1:], strict=False):
                stored = next(each for each in known if each.place.key == place.key)
                n_tokens = stop - start
                try:
                    scored = _scored(stored, batch.teacher.slice(start, n_tokens))
                    theirs = model_scores(batch.student.slice(start, n_tokens))
                except InputError as error:
                    self._skip(place.conversation_id, place.branch, error)
                    continue
                waiting.append(scored)
                students.append(theirs)
            yield from self._compare(waiting, students)

    def _compare(
        self, waiting: list[ScoredConversation], students: list[ModelScores]
    ) -> Iterator[ScoredConversation]:
        try:
            compared = self.comparing.compare(waiting, students)
        except InputError as error:
            if len(waiting) == 1:
                self._skip(waiting[0].conversation_id, waiting[0].branch, error)
                return
            # One of them is bad.
            for conversation, scores in zip(waiting, students, strict=True):
                yield from self._compare([conversation], [scores])
            return
        yield from compared

    def _skip(self, conversation_id: str, branch: int, error: InputError) -> None:
        """Leave a conversation out, if errors are skipped."""
        if self._on_error is OnError.FAIL:
            raise error
        self.pairing.skipped.append(Skipped(conversation_id, branch, str(error)))

    def find(self, conversation_id: str, branch: int | None = None) -> ScoredConversation:
        """One shared conversation.

        Raises:
            InputError: A dataset has no such conversation, token ids differ, or logprobs are none.
        """
        mine = find_scored(self.teacher, conversation_id, branch)
        theirs = find_scored(self.student, conversation_id, mine.branch)
        if not np.array_equal(mine.token_ids, theirs.token_ids):
            raise InputError(
                f"{mine.name} has other token ids in {self.student.root} ({len(theirs):,}) than in "
                f"{self.teacher.root} ({len(mine):,}); expected equal ids. "
                "Score both models on the same rendered dataset."
            )
        return self.comparing.compare([mine], [theirs.teacher])[0]


def find_scored(dataset: Dataset, conversation_id: str, branch: int | None = None) -> ScoredConversation:
    """One conversation of a score dataset, read without the others.

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
                stored = next(each for each in dataset.stored(place.part) if each.place == place)
                return _scored(stored, _rows_of(stored, dataset.token_rows(_COLUMNS)))
            branches.append(place.branch)
    if branches:
        raise InputError(
            f"{dataset.root} has no branch {branch} of conversation {conversation_id!r}; "
            f"there are {', '.join(map(str, branches))}."
        )
    close = get_close_matches(conversation_id, known, n=3, cutoff=0) or known[:3]
    raise InputError(
        f"{dataset.root} has no conversation {conversation_id!r}; there are {dataset.n_conversations():,}, "
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
        messages=tuple(Message(each.role, each.tool_name, each.flags) for each in stored.messages),
        token_ids=tokens.token_ids,
        message_indices=tokens.message_indices,
        positions_in_message=table["position_in_message"].to_numpy(),
        sources=tokens.sources,
        source_codes=tokens.source_codes.astype(np.int64),
        is_content=tokens.is_content,
        sampled=tokens.sampled_mask,
        teacher=model_scores(table),
    )
