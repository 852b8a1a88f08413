"""Conversations that two score datasets share, read side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.rendering.dataset import Dataset
from tokscore.rendering.errors import InputError
from tokscore.rendering.parts import part_name

# Settings that change what a logprob means.
_SAME_SETTINGS = ("temperature", "logprob_mode")
_CACHED_ROW_GROUPS = 3


class Pair(NamedTuple):
    """One conversation as both models scored it.

    Attributes:
        conversation_id: In both datasets.
        branch: In both datasets.
        teacher: Token rows of the teacher.
        student: Token rows of the student, with the same token ids.
    """

    conversation_id: str
    branch: int
    teacher: pa.Table
    student: pa.Table


class _Place(NamedTuple):
    """Where the rows of one conversation are."""

    conversation_id: str
    branch: int
    part: int
    first_row: int
    n_tokens: int

    @property
    def key(self) -> tuple[str, int]:
        return self.conversation_id, self.branch


class Pairing:
    """Iterates over the shared conversations in the teacher's order; the counts are final afterwards.

    Memory holds a few row groups. Where both datasets list their conversations in the same order,
    it grows with nothing; otherwise with the number of conversations.

    Attributes:
        n_conversations: Conversations (or branches) compared.
        n_only_teacher: Those that the student's dataset lacks.
        n_only_student: Those that the teacher's dataset lacks.
    """

    def __init__(
        self,
        teacher: Dataset,
        student: Dataset,
        *,
        teacher_columns: Sequence[str],
        student_columns: Sequence[str],
    ) -> None:
        """Check that the two can be compared.

        Raises:
            InputError: Their tokenizers, temperatures or logprob modes differ.
        """
        _check_comparable(teacher, student)
        self._teacher, self._student = teacher, student
        self._columns = (["token_id", *teacher_columns], ["token_id", *student_columns])
        self.n_conversations = 0
        self.n_only_teacher = 0
        self.n_only_student = 0

    def __iter__(self) -> Iterator[Pair]:
        """The pairs.

        Raises:
            InputError: Token ids differ, or no conversation is in both datasets.
        """
        teacher_rows = _TokenRows(self._teacher, self._columns[0])
        student_rows = _TokenRows(self._student, self._columns[1])
        self.n_conversations, self.n_only_teacher = 0, 0
        self.n_only_student = _n_conversations(self._student)
        for place, other in self._matches():
            if other is None:
                self.n_only_teacher += 1
                continue
            self.n_conversations += 1
            self.n_only_student -= 1
            pair = Pair(*place.key, teacher_rows.read(place), student_rows.read(other))
            self._check_token_ids(pair)
            yield pair
        if not self.n_conversations:
            raise InputError(
                f"{self._teacher.root} and {self._student.root} share no conversation "
                f"({self.n_only_teacher} and {self.n_only_student}); expected the same ids in both. "
                "Score both models on the same rendered dataset."
            )

    def _matches(self) -> Iterator[tuple[_Place, _Place | None]]:
        """Every conversation of the teacher with the student's: the next one, as long as orders agree."""
        following = _places(self._student)
        index: dict[tuple[str, int], _Place] | None = None
        for place in _places(self._teacher):
            if index is None:
                other = next(following, None)
                if other is not None and other.key == place.key:
                    yield place, other
                    continue
                index = {candidate.key: candidate for candidate in _places(self._student)}
            yield place, index.get(place.key)

    def _check_token_ids(self, pair: Pair) -> None:
        mine, theirs = pair.teacher["token_id"].to_numpy(), pair.student["token_id"].to_numpy()
        if np.array_equal(mine, theirs):
            return
        n_shared = min(len(mine), len(theirs))
        differs = np.flatnonzero(mine[:n_shared] != theirs[:n_shared])
        position = int(differs[0]) if len(differs) else n_shared
        found = [str(ids[position]) if position < len(ids) else "the end" for ids in (mine, theirs)]
        name = conversation_name(pair.conversation_id, pair.branch)
        raise InputError(
            f"{name}, position {position}: token id is {found[0]} "
            f"in {self._teacher.root} and {found[1]} in {self._student.root}; expected equal token ids. "
            "Were they rendered with the same template and kwargs?"
        )


def conversation_name(conversation_id: str, branch: int) -> str:
    """How messages call a conversation."""
    return f"conversation {conversation_id!r}" + (f" branch {branch}" if branch else "")


def _check_comparable(teacher: Dataset, student: Dataset) -> None:
    mine, theirs = teacher.manifest, student.manifest
    differences = [
        f"settings.{name} is {mine.settings[name]!r} and {theirs.settings[name]!r}"
        for name in _SAME_SETTINGS
        if name in mine.settings and name in theirs.settings and mine.settings[name] != theirs.settings[name]
    ]
    if mine.tokenizer.sha256 != theirs.tokenizer.sha256:
        differences.append(
            f"the tokenizer is {mine.tokenizer.name} (sha256 {mine.tokenizer.sha256[:12]}) and "
            f"{theirs.tokenizer.name} (sha256 {theirs.tokenizer.sha256[:12]})"
        )
    if differences:
        raise InputError(
            f"{teacher.root} and {student.root} cannot be compared: {'; '.join(differences)}. "
            "Score both models on the same rendered dataset with the same settings."
        )


def _n_conversations(dataset: Dataset) -> int:
    return sum(int(pq.read_metadata(path).num_rows) for path in dataset.files("conversations"))


def _places(dataset: Dataset) -> Iterator[_Place]:
    columns = ["conversation_id", "branch", "first_row", "n_tokens"]
    for part, path in zip(dataset.manifest.parts, dataset.files("conversations"), strict=True):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=columns):
                for record in batch.to_pylist():
                    yield _Place(part=part.index, **record)


class _TokenRows:
    """Reads token rows of a dataset by place, keeping the last few row groups."""

    def __init__(self, dataset: Dataset, columns: Sequence[str]) -> None:
        self._folder = dataset.root / dataset.manifest.kind.value
        self._columns = list(dict.fromkeys(columns))
        self._file = lru_cache(maxsize=_CACHED_ROW_GROUPS)(self._open)
        self._row_group = lru_cache(maxsize=_CACHED_ROW_GROUPS)(self._read_row_group)

    def read(self, place: _Place) -> pa.Table:
        """The rows of one conversation.

        Raises:
            InputError: The table ends before.
        """
        starts = self._file(place.part)[1]
        stop = place.first_row + place.n_tokens
        if stop > starts[-1]:
            raise InputError(
                f"{self._folder / part_name(place.part)} has {starts[-1]} rows; expected {stop}, "
                f"the end of {conversation_name(place.conversation_id, place.branch)}."
            )
        group = int(np.searchsorted(starts, place.first_row, side="right")) - 1
        pieces = []
        while group < len(starts) - 1 and starts[group] < stop:
            begin = max(place.first_row - starts[group], 0)
            rows = self._row_group(place.part, group)
            pieces.append(rows.slice(begin, stop - starts[group] - begin))
            group += 1
        if not pieces:
            return self._file(place.part)[0].schema_arrow.empty_table().select(self._columns)
        return pa.concat_tables(pieces) if len(pieces) > 1 else pieces[0]

    def _open(self, part: int) -> tuple[pq.ParquetFile, list[int]]:
        """The file, and the first row of every row group and of the end."""
        file = pq.ParquetFile(self._folder / part_name(part))
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return file, [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _read_row_group(self, part: int, group: int) -> pa.Table:
        return self._file(part)[0].read_row_group(group, columns=self._columns)
