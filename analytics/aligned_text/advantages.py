"""Advantages for a student, whose tokens may be others than those of its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, overload

import numpy as np

from tokscore.analytics.aligned_text.text_spans import IndexArray, text_spans
from tokscore.analytics.comparison.content_alignment import FieldText
from tokscore.analytics.divergence.advantages import token_advantages
from tokscore.analytics.divergence.topk import FloatArray, LogprobArray
from tokscore.dataset.choices import Align, choose
from tokscore.dataset.errors import InputError, UsageError


class Placement(StrEnum):
    """Where the log-ratio of a span goes: its last token, or all of them in equal parts."""

    LAST = "last"
    SPREAD = "spread"


@overload
def advantages(
    teacher_logprobs: LogprobArray,
    student_logprobs: LogprobArray,
    *,
    align: Literal[Align.TOKENS, "tokens"] = Align.TOKENS,
) -> FloatArray: ...


@overload
def advantages(
    teacher_logprobs: LogprobArray,
    student_logprobs: LogprobArray,
    teacher_tokens: Sequence[bytes],
    student_tokens: Sequence[bytes],
    *,
    align: Literal[Align.TEXT, "text"],
    on: Placement | Literal["last", "spread"] = Placement.LAST,
) -> FloatArray: ...


def advantages(
    teacher_logprobs: LogprobArray,
    student_logprobs: LogprobArray,
    teacher_tokens: Sequence[bytes] | None = None,
    student_tokens: Sequence[bytes] | None = None,
    *,
    align: Align | str = Align.TOKENS,
    on: Placement | str = Placement.LAST,
) -> FloatArray:
    """Advantage of every token of the student: log p - log q, the teacher's p less the student's q.

    With `align="tokens"`, both logprobs are of the same tokens; see `token_advantages` for infinities, errors
    and the source.

    With `align="text"`, both are of one text, of which the teacher has other tokens. It is cut wherever both
    tokenizations have a boundary between characters. The advantage of a span is log p(span) - log q(span):
    sums of the logprobs of its tokens, by the chain rule. `on` says which of the student's tokens get it;
    either way they add up to the same.

    Args:
        teacher_logprobs: Of the teacher's tokens, in nats, float32 or float64; of any shape where tokens are
            the same, otherwise [teacher's tokens].
        student_logprobs: Of the student's, same shape or [student's tokens].
        teacher_tokens: Bytes of the teacher's tokens, for text.
        student_tokens: Bytes of the student's, for text.
        align: "tokens" or "text".
        on: "last" gives all of it to the last token of a span and 0 to the others, as the probability of a
            span is known with its last token; "spread" gives every token the same part.

    Returns:
        float64, one for each token of the student, in nats; of text, NaN where a token shares its text with
        no span, such as one with characters that the teacher's text lacks.

    Raises:
        UsageError: `align` or `on` is none, or the bytes are there for tokens, or missing for text.
        InputError: A side has not one logprob for each token, or the texts do not fit together.
        TokenError: A logprob is NaN or above 0, or both sides rule a token out; of text, the place is that
            of the span.
    """
    align, on = choose(Align, align, "align"), choose(Placement, on, "on")
    if align is Align.CONTENT:
        raise UsageError("`align` is 'content'; arrays have no messages: expected tokens or text.")
    if align is Align.TOKENS:
        if teacher_tokens is not None or student_tokens is not None:
            raise UsageError("bytes of tokens are given for `align` 'tokens', which needs none.")
        return token_advantages(teacher_logprobs, student_logprobs)
    if teacher_tokens is None or student_tokens is None:
        raise UsageError("`align` 'text' needs `teacher_tokens` and `student_tokens`, the bytes of each.")
    teacher = _checked(teacher_logprobs, teacher_tokens, "teacher")
    student = _checked(student_logprobs, student_tokens, "student")
    spans = text_spans(_text(teacher_tokens), _text(student_tokens))
    if spans is None:
        raise InputError(
            "the tokens of teacher and student are of other texts; expected the same text twice."
        )
    result: FloatArray = np.full(len(student), np.nan)
    if not spans.n_spans:
        return result
    of_spans = token_advantages(_sums(teacher, spans.teacher), _sums(student, spans.student))
    first, stop, sizes = spans.student[0], spans.student[-1], np.diff(spans.student)
    if on is Placement.SPREAD:
        result[first:stop] = np.repeat(of_spans / sizes, sizes)
    else:
        result[first:stop] = 0.0
        result[spans.student[1:] - 1] = of_spans
    return result


def _checked(logprobs: LogprobArray, tokens: Sequence[bytes], side: str) -> FloatArray:
    found: FloatArray = np.asarray(logprobs, np.float64)
    if found.shape != (len(tokens),):
        raise InputError(
            f"{side} logprobs have shape {found.shape} for {len(tokens)} tokens; expected one for each."
        )
    return found


def _sums(logprobs: FloatArray, bounds: IndexArray) -> FloatArray:
    sums: FloatArray = np.add.reduceat(logprobs[: bounds[-1]], bounds[:-1])
    return sums


def _text(tokens: Sequence[bytes]) -> FieldText:
    return FieldText(b"".join(tokens).decode("latin-1"), np.cumsum([0, *map(len, tokens)]))
