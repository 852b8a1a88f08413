"""Conversations that two score datasets share, read side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.analytics.alignment import ALIGNMENT_COLUMNS, Align
from tokscore.analytics.integrity import damaged, opened
from tokscore.rendering.dataset import PLAN_KEY, Dataset
from tokscore.rendering.errors import InputError
from tokscore.rendering.parts import part_name
from tokscore.rendering.run import OnError

# Settings that change what a logprob means.
_SAME_SETTINGS = ("temperature", "logprob_mode")
# Settings that change what is printed around messages.
_RENDERING_SETTINGS = ("template_kwargs", "tools_sha256", "add_generation_prompt")
_CACHED_ROW_GROUPS = 2
K = TypeVar("K")
V = TypeVar("V")
# Strings of few values, which stay codes.
_REPEATED = ["conversation_id", "role", "source"]


class Place(NamedTuple):
    """Where the rows of one conversation are.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        metadata: The record's metadata as JSON text, None without.
        part: Index of the part.
        first_row: Of its tokens in that part.
        n_tokens: Rows.
    """

    conversation_id: str
    branch: int
    metadata: str | None
    part: int
    first_row: int
    n_tokens: int

    @property
    def key(self) -> tuple[str, int]:
        """What conversations are matched by."""
        return self.conversation_id, self.branch


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


class PairBatch(NamedTuple):
    """Whole conversations as both models scored them.

    Attributes:
        places: The conversations, as the teacher's dataset holds them.
        starts: First row of each, and the number of all rows; int64.
        teacher: Token rows of the teacher.
        student: Token rows of the student; with the same token ids, unless only the content is compared.
        student_starts: First row of each conversation there, and the number of all.
    """

    places: list[Place]
    starts: NDArray[np.int64]
    teacher: pa.Table
    student: pa.Table
    student_starts: NDArray[np.int64]

    def without(self, conversations: Sequence[int]) -> PairBatch:
        """The batch less some conversations, by index."""
        kept = np.setdiff1d(np.arange(len(self.places)), conversations)
        teacher, starts = kept_rows(kept, self.starts, self.teacher)
        student, student_starts = kept_rows(kept, self.student_starts, self.student)
        return PairBatch([self.places[index] for index in kept], starts, teacher, student, student_starts)


def kept_rows(
    conversations: NDArray[np.int64], starts: NDArray[np.int64], table: pa.Table
) -> tuple[pa.Table, NDArray[np.int64]]:
    """The rows of some conversations, and where each begins."""
    lengths = np.diff(starts)
    is_kept = np.repeat(np.isin(np.arange(len(lengths)), conversations), lengths)
    return table.filter(pa.array(is_kept)), np.concatenate([[0], np.cumsum(lengths[conversations])])


class Skipped(NamedTuple):
    """A conversation that could not be compared.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        reason: With its place.
    """

    conversation_id: str
    branch: int
    reason: str


class Pairing:
    """Iterates over the shared conversations in the teacher's order; the counts are final afterwards.

    Memory holds a few row groups. Where both datasets list their conversations in the same order,
    it grows with nothing; otherwise with the number of conversations.

    Attributes:
        n_conversations: Conversations (or branches) in both datasets, skipped ones too.
        n_only_teacher: Those that the student's dataset lacks.
        n_only_student: Those that the teacher's dataset lacks.
        skipped: Those that were left out for what is wrong with them.
    """

    def __init__(
        self,
        teacher: Dataset,
        student: Dataset,
        *,
        teacher_columns: Sequence[str],
        student_columns: Sequence[str],
        on_error: OnError = OnError.FAIL,
        align: Align = Align.TOKENS,
    ) -> None:
        """Check that the two can be compared.

        Args:
            teacher: A dataset.
            student: Another.
            teacher_columns: Token columns to read of it.
            student_columns: Likewise.
            on_error: What one bad conversation does.
            align: Whether all token ids have to be equal; if not, the columns of alignment are read too.

        Raises:
            InputError: Their tokenizers, temperatures or logprob modes differ.
        """
        _check_comparable(teacher, student)
        self._teacher, self._student = teacher, student
        self._align = align
        needed = ["token_id", "position", *(ALIGNMENT_COLUMNS if align is Align.CONTENT else ())]
        self._columns = [*needed, *teacher_columns], [*needed, *student_columns]
        self._on_error = on_error
        self.n_conversations = 0
        self.n_only_teacher = 0
        self.n_only_student = 0
        self.skipped: list[Skipped] = []

    def batches(self, n_tokens: int) -> Iterator[PairBatch]:
        """Conversations in batches of at least `n_tokens` rows, but for the last.

        Raises:
            InputError: Token ids differ or rows are out of order and errors are not skipped; files are
                damaged; or no conversation is in both datasets.
        """
        readers = _TokenRows(self._teacher, self._columns[0]), _TokenRows(self._student, self._columns[1])
        self.n_conversations, self.n_only_teacher = 0, 0
        self.n_only_student = self._student.n_conversations()
        waiting: list[tuple[Place, Place]] = []
        n_waiting = 0
        for place, other in self._matches():
            if other is None:
                self.n_only_teacher += 1
                continue
            self.n_conversations += 1
            self.n_only_student -= 1
            if self._align is Align.TOKENS and place.n_tokens != other.n_tokens:
                self._refuse_lengths(place, other, readers)
                continue
            waiting.append((place, other))
            n_waiting += max(place.n_tokens, other.n_tokens)
            if n_waiting >= n_tokens:
                yield self._read(waiting, readers)
                waiting, n_waiting = [], 0
        if waiting:
            yield self._read(waiting, readers)
        if not self.n_conversations:
            raise InputError(
                f"{self._teacher.root} and {self._student.root} share no conversation "
                f"({self.n_only_teacher} and {self.n_only_student}); expected the same ids in both. "
                "Score both models on the same rendered dataset."
            )
        self.check_some_compared()

    def check_some_compared(self) -> None:
        """Refuse datasets of which every shared conversation was skipped.

        Raises:
            InputError: With what is wrong with the first.
        """
        if self.skipped and len(self.skipped) == self.n_conversations:
            raise InputError(
                f"none of the {self.n_conversations} shared conversations could be compared. "
                f"The first: {self.skipped[0].reason}"
            )

    def __iter__(self) -> Iterator[Pair]:
        """The conversations one by one; errors as of `batches`."""
        for batch in self.batches(1):
            for place, start in zip(batch.places, batch.starts.tolist(), strict=False):
                tables = (table.slice(start, place.n_tokens) for table in (batch.teacher, batch.student))
                yield Pair(*place.key, *tables)

    def refuse(self, place: Place, reason: str) -> None:
        """Count a conversation as skipped, or end here.

        Raises:
            InputError: Errors are not skipped.
        """
        if self._on_error is OnError.FAIL:
            raise InputError(f"{reason}\nLeave such conversations out with --on-error skip.")
        self.skipped.append(Skipped(*place.key, reason))

    def _matches(self) -> Iterator[tuple[Place, Place | None]]:
        """Every conversation of the teacher with the student's: the next one, as long as orders agree."""
        following = places(self._student)
        index: dict[tuple[str, int], Place] | None = None
        for place in places(self._teacher):
            if index is None:
                other = next(following, None)
                if other is not None and other.key == place.key:
                    yield place, other
                    continue
                index = {candidate.key: candidate for candidate in places(self._student)}
            yield place, index.get(place.key)

    def _read(self, pairs: list[tuple[Place, Place]], readers: tuple[_TokenRows, _TokenRows]) -> PairBatch:
        mine, theirs = [place for place, _ in pairs], [other for _, other in pairs]
        starts, other_starts = (
            np.cumsum([0, *(place.n_tokens for place in side)]) for side in (mine, theirs)
        )
        tables = readers[0].read_all(mine), readers[1].read_all(theirs)
        batch = PairBatch(mine, starts, *tables, other_starts)
        bad = _out_of_order(self._teacher, mine, starts, batch.teacher)
        bad = _out_of_order(self._student, mine, other_starts, batch.student) | bad
        if self._align is Align.TOKENS:
            ids = batch.teacher["token_id"].to_numpy(), batch.student["token_id"].to_numpy()
            for conversation, row in _first_bad(starts, ids[0] != ids[1]):
                position = row - int(starts[conversation])
                found = self._token_difference(mine[conversation], position, *(str(e[row]) for e in ids))
                bad.setdefault(conversation, found)
        for conversation, reason in sorted(bad.items()):
            self.refuse(mine[conversation], reason)
        return batch.without(list(bad)) if bad else batch

    def _refuse_lengths(self, place: Place, other: Place, readers: tuple[_TokenRows, _TokenRows]) -> None:
        ids = [
            reader.read_all([each])["token_id"].to_numpy()
            for reader, each in zip(readers, (place, other), strict=True)
        ]
        n_shared = min(place.n_tokens, other.n_tokens)
        differs = np.flatnonzero(ids[0][:n_shared] != ids[1][:n_shared])
        position = int(differs[0]) if len(differs) else n_shared
        found = [str(each[position]) if position < len(each) else "the end" for each in ids]
        self.refuse(place, self._token_difference(place, position, *found))

    def _token_difference(self, place: Place, position: int, mine: str, theirs: str) -> str:
        return (
            f"{conversation_name(*place.key)}, position {position}: token id is {mine} "
            f"in {self._teacher.root} and {theirs} in {self._student.root}; expected equal token ids. "
            + (
                "They were rendered with different templates: render both with one, or compare only the text "
                "of messages: tokscore diff --align content."
                if _is_rendered_otherwise(self._teacher, self._student)
                else "Were they rendered with the same template and kwargs?"
            )
        )


def _is_rendered_otherwise(teacher: Dataset, student: Dataset) -> bool:
    mine, theirs = teacher.manifest, student.manifest
    return mine.tokenizer.template_sha256 != theirs.tokenizer.template_sha256 or any(
        mine.settings.get(name) != theirs.settings.get(name) for name in _RENDERING_SETTINGS
    )


def _out_of_order(
    side: Dataset, places: list[Place], starts: NDArray[np.int64], table: pa.Table
) -> dict[int, str]:
    """What is wrong with conversations whose positions are not 0, 1, 2 and so on, by index."""
    positions = table["position"].to_numpy()
    rows = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    return {
        conversation: f"{side.root}: {conversation_name(*places[conversation].key)}: row {rows[row]} has "
        f"position {positions[row]}; expected rows in order. Write the dataset again."
        for conversation, row in _first_bad(starts, positions != rows)
    }


def _first_bad(starts: NDArray[np.int64], is_bad: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The first bad row of every conversation that has one."""
    rows = np.flatnonzero(is_bad)
    conversations, first = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_index=True)
    yield from zip(conversations.tolist(), rows[first].tolist(), strict=True)


def token_batches(
    dataset: Dataset, columns: Sequence[str], n_tokens: int
) -> Iterator[tuple[list[Place], NDArray[np.int64], pa.Table]]:
    """Conversations of one dataset in batches of at least `n_tokens` rows, with the first row of each.

    Raises:
        InputError: A file is damaged or foreign.
    """
    reader = _TokenRows(dataset, columns)
    waiting: list[Place] = []
    for place in places(dataset):
        waiting.append(place)
        if sum(each.n_tokens for each in waiting) >= n_tokens:
            yield waiting, np.cumsum([0, *(each.n_tokens for each in waiting)]), reader.read_all(waiting)
            waiting = []
    if waiting:
        yield waiting, np.cumsum([0, *(each.n_tokens for each in waiting)]), reader.read_all(waiting)


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


def places(dataset: Dataset) -> Iterator[Place]:
    """The conversations of a dataset, part after part.

    Raises:
        InputError: A conversations table belongs to another plan than the manifest.
    """
    columns = ["conversation_id", "branch", "metadata", "first_row", "n_tokens"]
    for part, path in zip(dataset.manifest.parts, dataset.files("conversations"), strict=True):
        with opened(path) as file:
            plan = (file.schema_arrow.metadata or {}).get(PLAN_KEY, b"").decode()
            if plan != dataset.manifest.plan_hash:
                raise InputError(
                    f"{path} belongs to another plan than the manifest. Write the dataset again."
                )
            try:
                for batch in file.iter_batches(columns=columns):
                    for record in batch.to_pylist():
                        yield Place(part=part.index, **record)
            except (OSError, pa.ArrowInvalid) as error:
                raise damaged(path, error) from error


def _latest(kept: dict[K, V], key: K, make: Callable[[K], V]) -> V:
    """The value of a key, of which only those used last are kept."""
    value = kept.pop(key) if key in kept else make(key)
    kept[key] = value
    if len(kept) > _CACHED_ROW_GROUPS:
        del kept[next(iter(kept))]
    return value


class _TokenRows:
    """Reads token rows of a dataset by place, keeping the last few row groups."""

    def __init__(self, dataset: Dataset, columns: Sequence[str]) -> None:
        self._folder = dataset.root / dataset.manifest.kind.value
        self._columns = list(dict.fromkeys(columns))
        # Caches of bound methods would be cycles, and keep their row groups until those are looked for.
        self._files: dict[int, tuple[pq.ParquetFile, list[int]]] = {}
        self._row_groups: dict[tuple[int, int], pa.Table] = {}

    def read_all(self, wanted: Sequence[Place]) -> pa.Table:
        """The rows of some conversations, one after the other.

        Raises:
            InputError: A table ends before, or is damaged.
        """
        pieces: list[pa.Table] = []
        first = 0
        while first < len(wanted):
            last = first
            stop = wanted[first].first_row + wanted[first].n_tokens
            # Neighbours are read together.
            while last + 1 < len(wanted) and wanted[last + 1][3:5] == (wanted[first].part, stop):
                last += 1
                stop += wanted[last].n_tokens
            pieces += self._read(wanted[first].part, wanted[first].first_row, stop, wanted[last])
            first = last + 1
        if not pieces:
            return self._file(wanted[0].part)[0].schema_arrow.empty_table().select(self._columns)
        return pa.concat_tables(pieces) if len(pieces) > 1 else pieces[0]

    def _read(self, part: int, first_row: int, stop: int, last: Place) -> Iterator[pa.Table]:
        starts = self._file(part)[1]
        if stop > starts[-1]:
            raise InputError(
                f"{self._folder / part_name(part)} has {starts[-1]} rows; expected {stop}, "
                f"the end of {conversation_name(*last.key)}."
            )
        group = int(np.searchsorted(starts, first_row, side="right")) - 1
        while group < len(starts) - 1 and starts[group] < stop:
            begin = max(first_row - starts[group], 0)
            yield self._row_group(part, group).slice(begin, stop - starts[group] - begin)
            group += 1

    def _file(self, part: int) -> tuple[pq.ParquetFile, list[int]]:
        return _latest(self._files, part, self._open)

    def _row_group(self, part: int, group: int) -> pa.Table:
        return _latest(self._row_groups, (part, group), lambda key: self._read_row_group(*key))

    def _open(self, part: int) -> tuple[pq.ParquetFile, list[int]]:
        """The file, and the first row of every row group and of the end."""
        file = opened(self._folder / part_name(part), read_dictionary=_REPEATED)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return file, [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _read_row_group(self, part: int, group: int) -> pa.Table:
        try:
            return self._file(part)[0].read_row_group(group, columns=self._columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged(self._folder / part_name(part), error) from error
