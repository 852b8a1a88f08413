"""Divergences of two models per token, as intervals that contain the value over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokscore.analytics.bounds import (
    gjs_slack,
    gjs_upper_limit,
    kl_student_teacher_slack,
    kl_teacher_student_slack,
    kl_upper_limits,
    lower_limit,
    tail_ratio,
    total_variation_limits,
)
from tokscore.analytics.overlap import FloatArray, IntArray, LogprobArray, Overlap, TokenError, TopK, join
from tokscore.rendering.errors import UsageError

# Small enough for the cells of a block to stay in the processor's cache.
BLOCK_CELLS = 100_000


class Bounds(NamedTuple):
    """Per-token limits of a divergence in nats, each float64 of shape [tokens].

    Attributes:
        lower: At most the value over the whole vocabulary, at least 0.
        upper: At least that value; inf where the lists do not limit it.
        unresolved: Probability of the ids whose value is not known on both sides, under the
            distribution that the divergence takes its mean over: the teacher for
            `kl_teacher_student`, the student for `kl_student_teacher`, and the mixture
            alpha * teacher + (1 - alpha) * student for the GJS.
    """

    lower: FloatArray
    upper: FloatArray
    unresolved: FloatArray


class Divergences(NamedTuple):
    """All divergences of the same tokens."""

    kl_teacher_student: Bounds
    kl_student_teacher: Bounds
    gjs: Bounds


def check_alpha(alpha: float) -> None:
    """Raise a `UsageError` unless 0 < alpha < 1."""
    if not 0.0 < alpha < 1.0:
        raise UsageError(
            f"alpha is {alpha:g}; expected a number between 0 and 1, without either. "
            "At the ends it is 0; what you want is kl_teacher_student, shown as KL(T||S), "
            "or kl_student_teacher, KL(S||T)."
        )


def topk_divergences(
    teacher: TopK, student: TopK, *, alpha: float = 0.5, token_ids: IntArray | None = None
) -> Divergences:
    """Per-token intervals of both KLs and the GJS, from the top-k lists of two models.

    Nothing is floored, renormalised or assumed about ids outside the lists, but that none is more
    likely than the least likely in the list. The intervals allow for the rounding of the
    stored logprobs by their dtype; they do not cover the noise of the engine that computed them.

    Args:
        teacher: Lists of the teacher.
        student: Lists of the student for the same tokens; k may differ.
        alpha: Weight of the teacher in the GJS.
        token_ids: The token that is there, shape [tokens]; with `realised` on both sides it counts
            as one more id of each list.

    Raises:
        UsageError: alpha is not between 0 and 1.
        TokenError: Logprobs that are none; `token` says where.
        InputError: Shapes or dtypes do not fit.

    Source:
        Lin (1991), Divergence Measures Based on the Shannon Entropy, for the GJS; see `bounds`
        for the limits.
    """
    check_alpha(alpha)
    blocks = []
    for overlap in _overlaps(teacher, student, token_ids):
        tail = tail_ratio(overlap)
        upper_teacher_student, upper_student_teacher = kl_upper_limits(overlap)
        p_unresolved, q_unresolved = overlap.teacher.unresolved, overlap.student.unresolved
        kl_teacher_student = lower_limit(kl_teacher_student_slack, overlap, tail)
        kl_student_teacher = lower_limit(kl_student_teacher_slack, overlap, tail)
        gjs = lower_limit(gjs_slack(alpha), overlap, tail), gjs_upper_limit(alpha, overlap)
        blocks.append(
            Divergences(
                Bounds(kl_teacher_student, upper_teacher_student, p_unresolved),
                Bounds(kl_student_teacher, upper_student_teacher, q_unresolved),
                Bounds(*gjs, alpha * p_unresolved + (1 - alpha) * q_unresolved),
            )
        )
    return Divergences(*(_joined(bounds) for bounds in zip(*blocks, strict=True)))


def topk_total_variation(teacher: TopK, student: TopK, *, token_ids: IntArray | None = None) -> Bounds:
    """Per-token interval of the total variation distance sum |p - q| / 2; arguments as in `topk_divergences`.

    Here `unresolved` is the larger of both models' masses.
    """
    return _joined(
        [
            Bounds(
                *total_variation_limits(overlap),
                np.maximum(overlap.teacher.unresolved, overlap.student.unresolved),
            )
            for overlap in _overlaps(teacher, student, token_ids)
        ]
    )


def _overlaps(teacher: TopK, student: TopK, token_ids: IntArray | None) -> Iterator[Overlap]:
    """The lists side by side, a block of tokens at a time; one empty block where there are none."""
    n_tokens = max(len(teacher.ids), len(student.ids))
    width = teacher.ids.shape[-1] + student.ids.shape[-1]
    n_block = max(1, BLOCK_CELLS // max(width, 1))
    for start in range(0, max(n_tokens, 1), n_block):
        stop = start + n_block
        ids = None if token_ids is None else token_ids[start:stop]
        try:
            yield join(teacher.rows(start, stop), student.rows(start, stop), ids)
        except TokenError as error:
            raise TokenError(error.side, start + error.token, error.reason) from None


def _joined(blocks: Sequence[Bounds]) -> Bounds:
    return Bounds(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _array(values: Any) -> Any:  # Any: arrays, lists and frames' columns alike
    return np.asarray(values)


def topk_gjs(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    alpha: float = 0.5,
) -> Bounds:
    """Per-token interval of alpha KL(T || M) + (1 - alpha) KL(S || M), M = alpha T + (1 - alpha) S.

    Args:
        teacher_ids: Most likely ids of the teacher, shape [tokens, k].
        teacher_logprobs: Their logprobs, float32 or float64.
        student_ids: Of the student; k may differ.
        student_logprobs: Their logprobs.
        alpha: Weight of the teacher, between 0 and 1.

    Raises:
        UsageError: alpha is not between 0 and 1.
        TokenError: Logprobs that are none.
        InputError: Shapes or dtypes do not fit.
    """
    teacher = TopK(_array(teacher_ids), _array(teacher_logprobs))
    student = TopK(_array(student_ids), _array(student_logprobs))
    return topk_divergences(teacher, student, alpha=alpha).gjs


def topk_kl_teacher_student(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    *,
    vocab_size: int | None = None,
) -> Bounds:
    """Per-token interval of KL(teacher || student); for KL(student || teacher), swap the models.

    Args:
        teacher_ids: Most likely ids of the teacher, shape [tokens, k].
        teacher_logprobs: Their logprobs, float32 or float64.
        student_ids: Of the student; k may differ.
        student_logprobs: Their logprobs.
        vocab_size: Number of ids of either model. Without it, or with shorter lists, `upper` is inf.

    Raises:
        TokenError: Logprobs that are none.
        InputError: Shapes or dtypes do not fit.
    """
    teacher = TopK(_array(teacher_ids), _array(teacher_logprobs), vocab_size=vocab_size)
    student = TopK(_array(student_ids), _array(student_logprobs), vocab_size=vocab_size)
    return topk_divergences(teacher, student).kl_teacher_student
