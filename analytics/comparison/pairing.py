"""Conversations that two score datasets share, read side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.analytics.comparison.content_alignment import ALIGNMENT_COLUMNS
from tokscore.dataset.choices import Align, OnError
from tokscore.dataset.errors import InputError, none_could
from tokscore.dataset.reading import Dataset
from tokscore.dataset.token_rows import Place, TokenRows, conversation_name, faulty_conversations

# Settings that change what a logprob means.
_SAME_SETTINGS = ("temperature", "logprob_mode")
# Settings that change what is printed around messages.
_RENDERING_SETTINGS = ("template_kwargs", "tools_sha256", "add_generation_prompt")


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
            on_error: Whether a bad conversation ends the run or is left out.
            align: Whether all token ids have to be equal; if not, the columns of alignment are read too, and
                for a comparison by text tokenizers may differ.

        Raises:
            InputError: Their tokenizers, temperatures or logprob modes differ.
        """
        _check_comparable(teacher, student, align)
        self._teacher, self._student = teacher, student
        self._align = align
        needed = ["token_id", "position", *(() if align is Align.TOKENS else ALIGNMENT_COLUMNS)]
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
        readers = self._teacher.token_rows(self._columns[0]), self._student.token_rows(self._columns[1])
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
                none_could(self.n_conversations, "shared conversation", "be compared", self.skipped[0].reason)
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
            raise InputError(f"{reason}\nLeave such conversations out with `on_error='skip'`.")
        self.skipped.append(Skipped(*place.key, reason))

    def _matches(self) -> Iterator[tuple[Place, Place | None]]:
        """Every conversation of the teacher with the student's: the next one, as long as orders agree."""
        following = self._student.places()
        index: dict[tuple[str, int], Place] | None = None
        for place in self._teacher.places():
            if index is None:
                other = next(following, None)
                if other is not None and other.key == place.key:
                    yield place, other
                    continue
                index = {candidate.key: candidate for candidate in self._student.places()}
            yield place, index.get(place.key)

    def _read(self, pairs: list[tuple[Place, Place]], readers: tuple[TokenRows, TokenRows]) -> PairBatch:
        mine, theirs = [place for place, _ in pairs], [other for _, other in pairs]
        starts, other_starts = (
            np.cumsum([0, *(place.n_tokens for place in side)]) for side in (mine, theirs)
        )
        tables = readers[0].read_all(mine), readers[1].read_all(theirs)
        batch = PairBatch(mine, starts, *tables, other_starts)
        bad: dict[int, str] = {}
        for dataset, side, side_starts, table in (
            (self._student, theirs, other_starts, batch.student),
            (self._teacher, mine, starts, batch.teacher),
        ):
            faults = faulty_conversations(side, side_starts, table)
            bad |= {
                conversation: f"{dataset.path(dataset.manifest.kind, side[conversation].part)}: {reason}"
                for conversation, reason in faults.items()
            }
        if self._align is Align.TOKENS:
            ids = batch.teacher["token_id"].to_numpy(), batch.student["token_id"].to_numpy()
            for conversation, row in _first_bad(starts, ids[0] != ids[1]):
                position = row - int(starts[conversation])
                found = self._token_difference(mine[conversation], position, *(str(e[row]) for e in ids))
                bad.setdefault(conversation, found)
        for conversation, reason in sorted(bad.items()):
            self.refuse(mine[conversation], reason)
        return batch.without(list(bad)) if bad else batch

    def _refuse_lengths(self, place: Place, other: Place, readers: tuple[TokenRows, TokenRows]) -> None:
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
                "of messages: `align='content'`."
                if _is_rendered_otherwise(self._teacher, self._student)
                else "Were they rendered with the same template and kwargs?"
            )
        )


def _is_rendered_otherwise(teacher: Dataset, student: Dataset) -> bool:
    mine, theirs = teacher.manifest, student.manifest
    return mine.tokenizer.template_sha256 != theirs.tokenizer.template_sha256 or any(
        mine.settings.get(name) != theirs.settings.get(name) for name in _RENDERING_SETTINGS
    )


def _first_bad(starts: NDArray[np.int64], is_bad: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """The first bad row of every conversation that has one."""
    rows = np.flatnonzero(is_bad)
    conversations, first = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_index=True)
    yield from zip(conversations.tolist(), rows[first].tolist(), strict=True)


def _check_comparable(teacher: Dataset, student: Dataset, align: Align) -> None:
    mine, theirs = teacher.manifest, student.manifest
    differences = [
        f"settings.{name} is {mine.settings[name]!r} and {theirs.settings[name]!r}"
        for name in _SAME_SETTINGS
        if name in mine.settings and name in theirs.settings and mine.settings[name] != theirs.settings[name]
    ]
    if align is not Align.TEXT and mine.tokenizer.sha256 != theirs.tokenizer.sha256:
        differences.append(
            f"the tokenizer is {mine.tokenizer.name} (sha256 {mine.tokenizer.sha256[:12]}) and "
            f"{theirs.tokenizer.name} (sha256 {theirs.tokenizer.sha256[:12]})"
        )
    if differences:
        raise InputError(
            f"{teacher.root} and {student.root} cannot be compared: {'; '.join(differences)}. "
            "Score both models on the same rendered dataset with the same settings."
        )
