"""Score datasets read conversation by conversation, alone or beside another model's."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.comparison.compare import Comparison, scored_vocab_size
from tokscore.analytics.comparison.pairing import Pairing, Skipped
from tokscore.analytics.divergence.intervals import check_alpha
from tokscore.analytics.report.scored import (
    SCORE_COLUMNS,
    TOKEN_COLUMNS,
    Comparing,
    Message,
    ModelScores,
    ScoredConversation,
    model_scores,
)
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset, RowReader
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.writing import part_name

_BATCH_TOKENS = 16_384
_CLOSE_IDS = 10_000


class _Header(NamedTuple):
    """A row of the conversations table with its messages."""

    row: dict[str, Any]  # Any: JSON values
    messages: tuple[Message, ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.row["conversation_id"], self.row["branch"]


def _headers(dataset: Dataset, part: int) -> Iterator[_Header]:
    messages = pq.read_table(
        dataset.root / "messages" / part_name(part), columns=["role", "tool_name", "flags"]
    )
    first = 0
    for row in pq.read_table(dataset.root / "conversations" / part_name(part)).to_pylist():
        mine = messages.slice(first, row["n_messages"]).to_pylist()
        first += row["n_messages"]
        yield _Header(row, tuple(Message(m["role"], m["tool_name"], tuple(m["flags"])) for m in mine))


def open_scores(path: Path | str) -> Dataset:
    """The score dataset at `path`.

    Raises:
        InputError: There is none, or it is not whole.
    """
    return Dataset(Path(path), kind=DatasetKind.SCORES)


def read_scored(dataset: Dataset) -> Iterator[ScoredConversation]:
    """Every conversation of one score dataset, in plan order.

    Raises:
        InputError: A table ends early, or a list and its logprobs differ in length.
    """
    for part in dataset.manifest.parts:
        rows = RowReader(
            dataset.root / dataset.manifest.kind.value / part_name(part.index),
            [*TOKEN_COLUMNS, *SCORE_COLUMNS],
        )
        for header in _headers(dataset, part.index):
            yield _scored(header, rows.take(header.row["n_tokens"]))


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
            teacher_columns=[*TOKEN_COLUMNS, *SCORE_COLUMNS],
            student_columns=SCORE_COLUMNS,
            on_error=on_error,
        )
        self._on_error = on_error

    def __iter__(self) -> Iterator[ScoredConversation]:
        """Every shared conversation in the teacher's order, compared.

        Raises:
            InputError: Token ids differ, logprobs are none, or no conversation is shared.
        """
        headers = (h for part in self.teacher.manifest.parts for h in _headers(self.teacher, part.index))
        for batch in self.pairing.batches(_BATCH_TOKENS):
            waiting: list[ScoredConversation] = []
            students: list[ModelScores] = []
            for place, start, stop in zip(batch.places, batch.starts, batch.starts[1:], strict=False):
                header = next(header for header in headers if header.key == place.key)
                n_tokens = stop - start
                try:
                    scored = _scored(header, batch.teacher.slice(start, n_tokens))
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
    for part in dataset.manifest.parts:
        ids = pq.read_table(
            dataset.root / "conversations" / part_name(part.index), columns=["conversation_id", "branch"]
        ).to_pydict()
        known += ids["conversation_id"][: max(0, _CLOSE_IDS - len(known))]
        for index, (name, number) in enumerate(zip(*ids.values(), strict=True)):
            if name == conversation_id:
                if branch is None or number == branch:
                    header = next(h for i, h in enumerate(_headers(dataset, part.index)) if i == index)
                    return _scored(header, _read_rows(dataset, part.index, header))
                branches.append(number)
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


def _read_rows(dataset: Dataset, part: int, header: _Header) -> pa.Table:
    """The token rows of one conversation, from the row groups that hold them."""
    path = dataset.root / dataset.manifest.kind.value / part_name(part)
    first, n_tokens = header.row["first_row"], header.row["n_tokens"]
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        groups = [i for i in range(len(sizes)) if starts[i] < first + n_tokens and starts[i + 1] > first]
        columns = [*TOKEN_COLUMNS, *SCORE_COLUMNS]
        if not groups:
            return file.schema_arrow.empty_table().select(columns)
        table = file.read_row_groups(groups, columns=columns).slice(first - int(starts[groups[0]]), n_tokens)
    if table.num_rows != n_tokens:
        raise InputError(f"{path} ends {n_tokens - table.num_rows} rows early. Write the dataset again.")
    return table


def _scored(header: _Header, table: pa.Table) -> ScoredConversation:
    sources = table["source"].cast(pa.string()).combine_chunks().dictionary_encode()
    row = header.row
    return ScoredConversation(
        conversation_id=row["conversation_id"],
        branch=row["branch"],
        source_file=row["source_file"],
        source_line=row["source_line"],
        status=row["status"],
        messages=header.messages,
        token_ids=table["token_id"].to_numpy(),
        message_indices=table["message_index"].to_numpy(),
        positions_in_message=table["position_in_message"].to_numpy(),
        sources=tuple(sources.dictionary.to_pylist()),
        source_codes=sources.indices.to_numpy().astype(np.int64),
        is_content=table["is_content"].to_numpy(),
        sampled=table["is_sampled"].combine_chunks().cast(pa.int8()).fill_null(-1).to_numpy(),
        teacher=model_scores(table),
    )
