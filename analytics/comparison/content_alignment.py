"""Content tokens of the same messages under two templates, matched by the bytes they cover in a field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.groups.codes import encode_column
from tokscore.dataset.reading import Dataset

IndexArray = NDArray[np.int64]

# Token columns that say what is content, and of which message and field.
ALIGNMENT_COLUMNS = ("message_index", "role", "source", "is_content")


class AlignedRows(NamedTuple):
    """Rows of two token tables that cover the same bytes of the same field of the same message.

    Attributes:
        teacher: In ascending order.
        student: Its partner for each; the token ids are equal.
        teacher_alone: Content tokens of the teacher without a partner.
        student_alone: Of the student.
    """

    teacher: IndexArray
    student: IndexArray
    teacher_alone: IndexArray
    student_alone: IndexArray


class Alignment(NamedTuple):
    """How much of the content of two datasets is compared.

    Attributes:
        n_aligned: Content tokens that both have in the same place.
        n_teacher_unaligned: Those that only the teacher has so.
        n_student_unaligned: Those that only the student has so.
    """

    n_aligned: int
    n_teacher_unaligned: int
    n_student_unaligned: int

    def plus(self, rows: AlignedRows) -> Alignment:
        """With those of more conversations."""
        more = (len(rows.teacher), len(rows.teacher_alone), len(rows.student_alone))
        return Alignment(*(mine + theirs for mine, theirs in zip(self, more, strict=True)))


class ContentAligner:
    """Matches content tokens of two datasets with one tokenizer.

    A token has a partner if both sides have a content token of the same id, message, role and field that
    covers the same bytes of that field. Tables do not say where in its message a token begins: it is told
    from the bytes of all content tokens of the field, which are the field's text, but for characters that
    the template left out at the ends or that share a token with it. Where that leaves a choice, as between
    "ha" and "ha ha", there is no partner.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        """Take the bytes of token ids; an id without bytes is like no other."""
        # One character a byte; ids without bytes are characters of their own.
        self._texts = {token_id: raw.decode("latin-1") for token_id, raw in token_bytes.items()}

    def align(
        self, teacher: pa.Table, teacher_starts: IndexArray, student: pa.Table, student_starts: IndexArray
    ) -> AlignedRows:
        """Partners among the tokens of the same conversations.

        Args:
            teacher: Whole conversations with `token_id` and `ALIGNMENT_COLUMNS`.
            teacher_starts: First row of each, and the number of all rows.
            student: The same conversations.
            student_starts: Likewise.
        """
        ids = [table["token_id"].to_numpy() for table in (teacher, student)]
        mine, theirs = content_fields(teacher, teacher_starts, student, student_starts)
        found: list[tuple[IndexArray, IndexArray]] = []
        for key, rows in mine.items():
            others = theirs.get(key)
            if others is not None:
                found += self._match(rows, ids[0], others, ids[1])
        none = np.zeros(0, np.int64)
        of_teacher = np.concatenate([none, *(rows for rows, _ in found)])
        of_student = np.concatenate([none, *(rows for _, rows in found)])
        order = np.argsort(of_teacher, kind="stable")
        return AlignedRows(
            of_teacher[order], of_student[order], _others(mine, of_teacher), _others(theirs, of_student)
        )

    def _match(
        self, rows: IndexArray, ids: NDArray[np.int32], others: IndexArray, other_ids: NDArray[np.int32]
    ) -> Iterator[tuple[IndexArray, IndexArray]]:
        """Partners in one field: all of it at once, else run by run where it has as many on both sides."""
        if np.array_equal(ids[rows], other_ids[others]):
            yield rows, others
            return
        whole = self._partners(ids[rows], other_ids[others])
        if whole is not None:
            yield rows[whole[0]], others[whole[1]]
            return
        runs, other_runs = runs_of(rows), runs_of(others)
        if 1 < len(runs) == len(other_runs):
            for run, other in zip(runs, other_runs, strict=True):
                part = self._partners(ids[run], other_ids[other])
                if part is not None:
                    yield run[part[0]], other[part[1]]

    def _partners(
        self, ids: NDArray[np.int32], other_ids: NDArray[np.int32]
    ) -> tuple[IndexArray, IndexArray] | None:
        """Indices of partners; None where the texts do not fit together in one way."""
        mine, theirs = self._text(ids), self._text(other_ids)
        shift = shift_between(mine, theirs)
        if shift is None:
            return None
        starts = mine.bounds[:-1] + shift, theirs.bounds[:-1]
        _, first, second = np.intersect1d(*starts, assume_unique=True, return_indices=True)
        same = ids[first] == other_ids[second]
        return first[same], second[same]

    def _text(self, ids: NDArray[np.int32]) -> FieldText:
        return field_text(ids, self._texts)


class FieldText(NamedTuple):
    """The bytes of some tokens.

    Attributes:
        raw: One character a byte; an id without bytes is a character of its own.
        bounds: Where each token begins and the last ends, int64 [tokens + 1].
    """

    raw: str
    bounds: IndexArray


def field_text(ids: NDArray[np.int32], texts: Mapping[int, str], unknown: int = 256) -> FieldText:
    """The bytes of tokens.

    Args:
        ids: int32 [tokens].
        texts: Bytes of ids, one character a byte.
        unknown: From here on are characters of ids without bytes, each of them like no other.
    """
    pieces = [texts.get(each) or chr(unknown + each) for each in ids.tolist()]
    return FieldText("".join(pieces), np.cumsum([0, *map(len, pieces)]))


def content_fields(
    teacher: pa.Table, teacher_starts: IndexArray, student: pa.Table, student_starts: IndexArray
) -> tuple[dict[tuple[int, ...], IndexArray], dict[tuple[int, ...], IndexArray]]:
    """Rows of the content tokens of every field, by conversation, message, role and source."""
    columns = []
    for name in ("role", "source"):
        chunks = [chunk for table in (teacher, student) for chunk in table[name].chunks]
        columns.append(encode_column(pa.chunked_array(chunks, teacher[name].type)).codes)
    found = []
    for table, starts, first in ((teacher, teacher_starts, 0), (student, student_starts, len(teacher))):
        rows = np.flatnonzero(pc.fill_null(table["is_content"], False).to_numpy())
        conversations = np.searchsorted(starts, rows, side="right") - 1
        keys = np.stack(
            [
                conversations,
                table["message_index"].to_numpy()[rows],
                *(codes[first + rows] for codes in columns),
            ]
        )
        order = np.lexsort(keys[::-1])  # stable: rows stay in their order
        rows, keys = rows[order], keys[:, order]
        is_first = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])[: len(rows)]
        begins = np.flatnonzero(is_first)
        found.append(
            dict(zip(map(tuple, keys[:, begins].T.tolist()), np.split(rows, begins[1:]), strict=False))
        )
    return found[0], found[1]


def _others(fields: dict[tuple[int, ...], IndexArray], matched: IndexArray) -> IndexArray:
    rows = np.concatenate([np.zeros(0, np.int64), *fields.values()])
    return np.setdiff1d(rows, matched, assume_unique=True)


def runs_of(rows: IndexArray) -> list[IndexArray]:
    """The rows in runs of neighbours."""
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def shift_between(mine: FieldText, theirs: FieldText) -> int | None:
    """The difference between an offset in one text and that in the other; None where it is not certain.

    One text lies in the other, or does without its first or last token, which may hold characters of the
    template. Where as much of it lies in several places, it is not certain.
    """
    if mine.raw == theirs.raw:
        return 0
    for ends in (((0, 0),), ((1, 0), (0, 1)), ((1, 1),)):
        shifts = {shift for end in ends for shift in _shifts(mine, theirs, *end)}
        shifts |= {-shift for end in ends for shift in _shifts(theirs, mine, *end)}
        if shifts:
            return shifts.pop() if len(shifts) == 1 else None
    return None


def _shifts(part: FieldText, whole: FieldText, n_first: int, n_last: int) -> set[int]:
    """Up to two places in `whole` of a text, less so many tokens at its ends, where the two fit together."""
    last = len(part.bounds) - 1 - n_last
    if n_first >= last:
        return set()
    start, stop = int(part.bounds[n_first]), int(part.bounds[last])
    core, found, at = part.raw[start:stop], set[int](), -1
    while core and len(found) < 2 and (at := whole.raw.find(core, at + 1)) >= 0:
        if _fit(part, whole, start, stop, at - start):
            found.add(at - start)
    return found


def _fit(part: FieldText, whole: FieldText, start: int, stop: int, shift: int) -> bool:
    """Whether the texts, equal in [start, stop), may differ beyond it by the template alone.

    To either side one of them ends, or goes on differently inside its first or last token, of which the
    rest is equal.
    """
    end, whole_end = len(part.raw), len(whole.raw)
    while start > max(0, -shift) and part.raw[start - 1] == whole.raw[start - 1 + shift]:
        start -= 1
    while stop < min(end, whole_end - shift) and part.raw[stop] == whole.raw[stop + shift]:
        stop += 1
    fits_first = start == max(0, -shift) or start < part.bounds[1] or start + shift < whole.bounds[1]
    fits_last = (
        stop == min(end, whole_end - shift) or stop > part.bounds[-2] or stop + shift > whole.bounds[-2]
    )
    return bool(fits_first and fits_last)


def vocabulary_bytes(dataset: Dataset) -> dict[int, bytes]:
    """Bytes of the ids of a dataset's vocabulary, where they are known.

    Raises:
        InputError: The vocabulary is damaged.
    """
    if not dataset.has_vocabulary:
        return {}
    table = dataset.vocabulary(["token_id", "bytes"])
    pairs = zip(table["token_id"].to_pylist(), table["bytes"].to_pylist(), strict=True)
    return {token_id: raw for token_id, raw in pairs if raw is not None}
