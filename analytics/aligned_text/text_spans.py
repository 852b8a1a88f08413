"""The same text in two tokenizations, cut wherever both have a boundary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.comparison.content_alignment import FieldText, shift_between

IndexArray = NDArray[np.int64]


class TextSpans(NamedTuple):
    """Spans of a field's text, each of one or more tokens of either side.

    Attributes:
        teacher: Indices of the teacher's tokens where spans begin, and behind the last; int64 [spans + 1].
        student: Of the student's.
        starts: Bytes of the teacher's text where spans begin, and behind the last; int64 [spans + 1].
    """

    teacher: IndexArray
    student: IndexArray
    starts: IndexArray

    @property
    def n_spans(self) -> int:
        """Their number; 0 where the two have no text in common."""
        return max(len(self.starts) - 1, 0)


NO_SPANS = TextSpans(*(np.zeros(0, np.int64) for _ in range(3)))


def text_spans(teacher: FieldText, student: FieldText) -> TextSpans | None:
    """The smallest spans that hold the same bytes on both sides.

    They follow each other without a gap. A span begins and ends where a character does: two tokens that
    share one stay together. Tokens of the two ends that hold other characters too, those of a template, are
    in no span.

    Args:
        teacher: All tokens of a field.
        student: Of the same field.

    Returns:
        The spans; None where the texts do not fit together in one way.
    """
    shift = shift_between(teacher, student)
    if shift is None:
        return None
    mine, my_tokens = _boundaries(teacher, shift)
    theirs, their_tokens = _boundaries(student, 0)
    _, first, second = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    if len(first) < 2:
        return NO_SPANS
    starts = mine[first] - shift
    span = slice(*_equal_ends(teacher.raw, student.raw, starts, shift))
    if span.stop - span.start < 2:
        return NO_SPANS
    return TextSpans(my_tokens[first][span], their_tokens[second][span], starts[span])


def _equal_ends(mine: str, theirs: str, starts: IndexArray, shift: int) -> tuple[int, int]:
    """The starts of spans, from one to another, less spans at the ends whose texts differ."""
    first, stop = 0, len(starts)

    def differs(at: int) -> bool:
        start, end = int(starts[at]), int(starts[at + 1])
        return mine[start:end] != theirs[start + shift : end + shift]

    while first + 1 < stop and differs(first):
        first += 1
    while first + 1 < stop and differs(stop - 2):
        stop -= 1
    return first, stop


def _boundaries(text: FieldText, shift: int) -> tuple[IndexArray, IndexArray]:
    """Offsets, moved by `shift`, where tokens and characters begin or all end, and the token at each."""
    offsets = np.unique(text.bounds)
    # Tokens without bytes belong to what stands before them.
    tokens = np.searchsorted(text.bounds, offsets, side="right") - 1
    tokens[0] = 0
    is_start = np.append(begins_character(text.raw), True)[offsets]
    return offsets[is_start] + shift, tokens[is_start]


def begins_character(raw: str) -> NDArray[np.bool_]:
    """Whether each byte of `FieldText.raw` begins a character of UTF-8: 0x80 to 0xBF go on with one."""
    codes = np.frombuffer(raw.encode("utf-32-le", "surrogatepass"), np.uint32)
    begins: NDArray[np.bool_] = (codes < 0x80) | (codes >= 0xC0)
    return begins
