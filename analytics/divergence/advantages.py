"""Scalar advantages for training a student on what a teacher says of its tokens."""

from __future__ import annotations

import numpy as np

from tokscore.analytics.divergence.topk import (
    MAX_LOGPROB,
    SIDES,
    FloatArray,
    LogprobArray,
    TokenError,
    unit_of,
)
from tokscore.dataset.errors import InputError


def token_advantages(teacher_logprobs: LogprobArray, student_logprobs: LogprobArray) -> FloatArray:
    """Advantage of every realised token: log p(token) - log q(token), the teacher's p less the student's q.

    Of tokens that the student sampled, the mean is -KL(student || teacher). Top-k lists have no part in it:
    both logprobs are those of the token that is there.

    Args:
        teacher_logprobs: Of the realised tokens, in nats, float32 or float64 of any shape.
        student_logprobs: Of the same tokens, same shape.

    Returns:
        float64 of that shape, in nats; -inf where the teacher rules a token out, inf where the student does.

    Raises:
        InputError: Shapes differ, or they hold other numbers than float32 or float64.
        TokenError: A logprob is NaN or above 0, or both sides rule a token out.

    Source:
        Gu et al. (2024), MiniLLM: the single-step part of the gradient of the reverse KL.
    """
    sides = np.asarray(teacher_logprobs), np.asarray(student_logprobs)
    if sides[0].shape != sides[1].shape:
        raise InputError(
            f"teacher logprobs have shape {sides[0].shape}, student logprobs {sides[1].shape}; expected one "
            "of each for every realised token."
        )
    for side, logprobs in zip(SIDES, sides, strict=True):
        unit_of(logprobs, side)
    teacher, student = (logprobs.astype(np.float64) for logprobs in sides)
    for side, values in zip(SIDES, (teacher, student), strict=True):
        bad = np.flatnonzero(~(values <= MAX_LOGPROB))
        if len(bad):
            reason = f"its logprob is {values.ravel()[bad[0]]:g}; expected at most 0."
            raise TokenError(side, int(bad[0]), reason)
    impossible = np.flatnonzero(np.isneginf(teacher) & np.isneginf(student))
    if len(impossible):
        token = int(impossible[0])
        raise TokenError(SIDES[1], token, "both logprobs are -inf; expected a token that one side allows.")
    difference: FloatArray = teacher - student
    return difference
