"""The most likely ids of two tokenizers at the same place, matched by their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import FloatArray

IndexArray = NDArray[np.int64]
ALPHA = 0.5
LIST_COLUMNS = ("top_ids", "top_logprobs")


class CommonIds(NamedTuple):
    """Numbers of the texts that both vocabularies have as one token; -1 for other ids.

    Attributes:
        teacher: By id of the teacher, int64.
        student: By id of the student, int64.
    """

    teacher: IndexArray
    student: IndexArray


def common_ids(teacher: Mapping[int, bytes], student: Mapping[int, bytes]) -> CommonIds:
    """Number the texts in common. Of several ids with the same bytes the lowest stands for it."""
    firsts = [
        {raw: token_id for token_id, raw in sorted(side.items(), reverse=True)} for side in (teacher, student)
    ]
    sides = [np.full(max(side, default=-1) + 1, -1, np.int64) for side in (teacher, student)]
    for number, raw in enumerate(firsts[0].keys() & firsts[1].keys()):
        for side, first in zip(sides, firsts, strict=True):
            side[first[raw]] = number
    return CommonIds(*sides)


class ListAgreement(NamedTuple):
    """Lists of two models compared; arrays of shape [places].

    Attributes:
        has_lists: Whether both have one.
        is_same_top: Whether the most likely ids have the same bytes.
        overlap: Share of the teacher's list that the student's has too.
        gjs_lower: The GJS of the two distributions over the texts in both lists and all else as one, in
            nats: no less by any way of splitting the rest.
        gjs_upper: The same where nothing of the rest is in common.
    """

    has_lists: NDArray[np.bool_]
    is_same_top: NDArray[np.bool_]
    overlap: FloatArray
    gjs_lower: FloatArray
    gjs_upper: FloatArray


def compare_lists(
    teacher: pa.Table, rows: IndexArray, student: pa.Table, student_rows: IndexArray, common: CommonIds
) -> ListAgreement:
    """Hold the lists of rows against each other.

    Args:
        teacher: Rows with `LIST_COLUMNS`.
        rows: Of the places, int64 [places].
        student: Likewise.
        student_rows: Likewise.
        common: Of the two vocabularies.
    """
    mine = _Entries.of(teacher, rows, common.teacher)
    theirs = _Entries.of(student, student_rows, common.student)
    n = len(rows)
    width = 1 + max(len(common.teacher), len(common.student))
    keys = [(each.places * width + each.numbers)[each.numbers >= 0] for each in (mine, theirs)]
    masses = [np.exp(each.logprobs)[each.numbers >= 0] for each in (mine, theirs)]
    found, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    places, p, q = found // width, masses[0][first], masses[1][second]
    rest: list[FloatArray] = [np.clip(1.0 - np.bincount(places, mass, minlength=n), 0, 1) for mass in (p, q)]
    matched = np.bincount(places, _gjs(p, q), minlength=n)
    has_lists = (mine.lengths > 0) & (theirs.lengths > 0)
    tops = mine.top(n), theirs.top(n)
    apart = -ALPHA * rest[0] * np.log(ALPHA) - (1 - ALPHA) * rest[1] * np.log(1 - ALPHA)
    return ListAgreement(
        has_lists,
        has_lists & (tops[0] == tops[1]) & (tops[0] >= 0),
        np.bincount(places, minlength=n) / np.maximum(mine.lengths, 1),
        np.maximum(matched + _gjs(*rest), 0.0),
        np.maximum(matched + apart, 0.0),
    )


class _Entries(NamedTuple):
    """Entries of lists, one after the other."""

    places: IndexArray
    numbers: IndexArray
    logprobs: FloatArray
    lengths: IndexArray

    @classmethod
    def of(cls, table: pa.Table, rows: IndexArray, common: IndexArray) -> _Entries:
        ids, logprobs = (table[name].take(pa.array(rows)).combine_chunks() for name in LIST_COLUMNS)
        lengths = pc.list_value_length(ids).fill_null(0).to_numpy().astype(np.int64)
        flat = ids.flatten().to_numpy().astype(np.int64)
        is_known = (flat >= 0) & (flat < len(common))
        numbers = np.full(len(flat), -1, np.int64)
        numbers[is_known] = common[flat[is_known]]
        places = np.repeat(np.arange(len(rows)), lengths)
        return cls(places, numbers, logprobs.flatten().to_numpy().astype(np.float64), lengths)

    def top(self, n: int) -> IndexArray:
        """The number of the first entry of each place; -1 where there is none."""
        result = np.full(n, -1, np.int64)
        has = self.lengths > 0
        result[has] = self.numbers[(np.cumsum(self.lengths) - self.lengths)[has]]
        return result


def _gjs(p: FloatArray, q: FloatArray) -> FloatArray:
    """The part of single outcomes in the generalized Jensen-Shannon divergence, in nats."""
    mixture = ALPHA * p + (1 - ALPHA) * q
    total: FloatArray = np.zeros(len(p))
    for weight, mass in ((ALPHA, p), (1 - ALPHA, q)):
        ratio = np.divide(mass, mixture, out=np.ones(len(p)), where=mass > 0)
        total += weight * mass * np.log(ratio)
    return total
