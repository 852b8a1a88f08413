"""Advantages for a student whose tokens are not those of its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from tokscore.analytics.aligned_text.text_spans import text_spans
from tokscore.analytics.comparison.content_alignment import FieldText
from tokscore.analytics.divergence.advantages import advantages
from tokscore.analytics.divergence.topk import FloatArray, LogprobArray
from tokscore.dataset.choices import choose
from tokscore.dataset.errors import InputError


class Placement(StrEnum):
    """Where the log-ratio of a span goes: its last token, or all of them in equal parts."""

    LAST = "last"
    SPREAD = "spread"


def text_advantages(
    teacher_logprobs: LogprobArray,
    student_logprobs: LogprobArray,
    teacher_tokens: Sequence[bytes],
    student_tokens: Sequence[bytes],
    *,
    on: Placement | str = Placement.LAST,
) -> FloatArray:
    """Advantage of every token of the student, where the teacher has another tokenizer.

    The text is cut wherever both tokenizations have a boundary between characters. The advantage of a span is
    log p(span) - log q(span): sums of the logprobs of its tokens, by the chain rule. `on` says which of the
    student's tokens get it; either way they add up to the same.

    Args:
        teacher_logprobs: Of the teacher's tokens of one text, in nats, float32 or float64 [teacher's tokens].
        student_logprobs: Of the student's, [student's tokens].
        teacher_tokens: Bytes of the teacher's tokens.
        student_tokens: Bytes of the student's.
        on: "last" gives all of it to the last token of a span and 0 to the others, as the probability of a
            span is known with its last token; "spread" gives every token the same part.

    Returns:
        float64 [student's tokens], in nats; NaN where a token shares its text with no span, such as one with
        characters that the teacher's text lacks.

    Raises:
        InputError: A side has not one logprob for each token, or the texts do not fit together.
        TokenError: A span has a logprob that is NaN or above 0, or both sides rule it out; the place is that
            of the span.
    """
    on = choose(Placement, on, "on")
    sides = []
    for side, logprobs, tokens in (
        ("teacher", teacher_logprobs, teacher_tokens),
        ("student", student_logprobs, student_tokens),
    ):
        found = np.asarray(logprobs, np.float64)
        if found.shape != (len(tokens),):
            raise InputError(
                f"{side} logprobs have shape {found.shape} for {len(tokens)} tokens; expected one for each."
            )
        sides.append(found)
    spans = text_spans(_text(teacher_tokens), _text(student_tokens))
    if spans is None:
        raise InputError(
            "the tokens of teacher and student are of other texts; expected the same text twice."
        )
    result: FloatArray = np.full(len(student_tokens), np.nan)
    if not spans.n_spans:
        return result
    sums = [
        np.add.reduceat(logprobs[: bounds[-1]], bounds[:-1])
        for logprobs, bounds in zip(sides, (spans.teacher, spans.student), strict=True)
    ]
    of_spans, sizes = advantages(*sums), np.diff(spans.student)
    first, stop = spans.student[0], spans.student[-1]
    if on is Placement.SPREAD:
        result[first:stop] = np.repeat(of_spans / sizes, sizes)
    else:
        result[first:stop] = 0.0
        result[spans.student[1:] - 1] = of_spans
    return result


def _text(tokens: Sequence[bytes]) -> FieldText:
    return FieldText(b"".join(tokens).decode("latin-1"), np.cumsum([0, *map(len, tokens)]))
