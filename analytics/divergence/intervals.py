"""Divergences of two models per token, as intervals that contain the value over the whole vocabulary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tokscore.analytics.divergence.topk import (
    FloatArray,
    IntArray,
    LogprobArray,
    TokenError,
    TopK,
    checked_ids,
    fault_reason,
    fault_side,
    lists_of,
)
from tokscore.dataset.errors import InputError, UsageError

# What one thread takes at a time.
BLOCK_TOKENS = 16_384


class Bounds(NamedTuple):
    """Per-token limits of a divergence in nats, each float64 of shape [tokens].

    Attributes:
        lower: At most the value over the whole vocabulary, at least 0.
        upper: At least that value; inf where the lists do not limit it.
        unresolved: Probability of the ids whose value is not known on both sides, under the
            distribution that the divergence takes its mean over: the teacher for
            `kl_teacher_student` and the skew KL, the student for `kl_student_teacher`, the mixture
            alpha * teacher + (1 - alpha) * student for the GJS, the larger of both for the total
            variation; for an entropy that of the ids which are not in both lists.
    """

    lower: FloatArray
    upper: FloatArray
    unresolved: FloatArray


class Divergences(NamedTuple):
    """The divergences most asked for, of the same tokens."""

    kl_teacher_student: Bounds
    kl_student_teacher: Bounds
    gjs: Bounds


class Limits:
    """All intervals of some tokens.

    Attributes:
        alphas: Weights of the teacher that the mixtures were taken with.
        columns: Float64 of shape [tokens, columns], as `bounds` names them.
    """

    def __init__(self, columns: FloatArray, alphas: Sequence[float]) -> None:
        self.columns = columns
        self.alphas = tuple(alphas)

    @property
    def kl_teacher_student(self) -> Bounds:
        """KL(teacher || student)."""
        return self._bounds(0, self.unresolved_teacher)

    @property
    def kl_student_teacher(self) -> Bounds:
        """KL(student || teacher)."""
        return self._bounds(2, self.unresolved_student)

    @property
    def total_variation(self) -> Bounds:
        """Sum |p - q| / 2."""
        return self._bounds(4, np.maximum(self.unresolved_teacher, self.unresolved_student))

    @property
    def entropy_teacher(self) -> Bounds:
        """-sum p log p; without a vocabulary size there is no upper limit."""
        return self._bounds(6, self.unresolved_teacher)

    @property
    def entropy_student(self) -> Bounds:
        """-sum q log q."""
        return self._bounds(8, self.unresolved_student)

    @property
    def unresolved_teacher(self) -> FloatArray:
        """Teacher mass of ids that are not known on both sides."""
        return self.columns[:, 10]

    @property
    def unresolved_student(self) -> FloatArray:
        """Student mass of them."""
        return self.columns[:, 11]

    def gjs(self, alpha: float) -> Bounds:
        """Alpha KL(T || M) + (1 - alpha) KL(S || M), M = alpha T + (1 - alpha) S."""
        unresolved = alpha * self.unresolved_teacher + (1 - alpha) * self.unresolved_student
        return self._bounds(self._column(alpha), unresolved)

    def skew_kl(self, alpha: float) -> Bounds:
        """KL(T || M) with the same M."""
        return self._bounds(self._column(alpha) + 2, self.unresolved_teacher)

    def _column(self, alpha: float) -> int:
        return 12 + 4 * self.alphas.index(alpha)

    def _bounds(self, column: int, unresolved: FloatArray) -> Bounds:
        return Bounds(self.columns[:, column], self.columns[:, column + 1], unresolved)


def check_alpha(alpha: float) -> None:
    """Raise a `UsageError` unless 0 < alpha < 1."""
    if not 0.0 < alpha < 1.0:
        raise UsageError(
            f"alpha is {alpha:g}; expected a number between 0 and 1, without either. "
            "At the ends it is 0; what you want is kl_teacher_student, shown as KL(T||S), "
            "or kl_student_teacher, KL(S||T)."
        )


def checked_alphas(alphas: Sequence[float]) -> list[float]:
    """Weights as floats, each once.

    Raises:
        UsageError: One is not between 0 and 1, or two differ that have one name in tables, or there is none.
    """
    found: dict[str, float] = {}
    for alpha in alphas:
        check_alpha(alpha)
        if found.setdefault(f"{alpha:g}", float(alpha)) != alpha:
            raise UsageError(
                f"alphas {found[f'{alpha:g}']!r} and {alpha!r} have one name, {alpha:g}; expected weights "
                "that differ in six digits."
            )
    if not found:
        raise UsageError("there is no alpha; expected one or more between 0 and 1.")
    return list(found.values())


def topk_limits(
    teacher: TopK, student: TopK, *, alphas: Sequence[float] = (0.5,), token_ids: IntArray | None = None
) -> Limits:
    """Per-token intervals of all divergences and entropies, from the top-k lists of two models.

    Nothing is floored, renormalised or assumed about ids outside the lists, but that none is more
    likely than the least likely in the list. The intervals allow for the rounding of the
    stored logprobs by their dtype; they do not cover the noise of the engine that computed them.
    Blocks of tokens are done on all cores; a token's values do not depend on the others.

    Args:
        teacher: Lists of the teacher.
        student: Lists of the student for the same tokens; k may differ.
        alphas: Weights of the teacher in the mixtures.
        token_ids: The token that is there, shape [tokens]; with `realised` on both sides it counts
            as one more id of each list.

    Raises:
        UsageError: An alpha is not between 0 and 1.
        TokenError: Logprobs that are none; `token` says where.
        InputError: Shapes or dtypes do not fit.

    Source:
        Lin (1991), Divergence Measures Based on the Shannon Entropy, for the GJS; Lee (1999), Measures
        of Distributional Similarity, for the skew KL; see `docs/divergence.md` for the limits.
    """
    from tokscore.analytics.divergence.kernel import COLUMNS_PER_ALPHA, FIRST_ALPHA, limits_of_tokens

    for alpha in alphas:
        check_alpha(alpha)
    realised = None if token_ids is None else checked_ids(token_ids, "realised")
    mine, theirs = lists_of(teacher, "teacher", realised), lists_of(student, "student", realised)
    n_tokens = len(mine.starts)
    if n_tokens != len(theirs.starts):
        raise InputError(f"teacher has {n_tokens} tokens, student {len(theirs.starts)}; expected as many.")
    if realised is None:
        realised = np.empty(0, np.int32)
    weights = np.array(alphas, np.float64)
    columns = np.zeros((n_tokens, FIRST_ALPHA + COLUMNS_PER_ALPHA * len(weights)))
    faults = np.zeros((n_tokens, 4))

    def run(start: int) -> None:
        rows = slice(start, start + BLOCK_TOKENS)
        limits_of_tokens(
            mine.rows(rows), theirs.rows(rows), realised[rows], weights, columns[rows], faults[rows]
        )

    blocks = range(0, max(n_tokens, 1), BLOCK_TOKENS)
    if len(blocks) == 1:
        run(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, blocks))
    if faults[:, 0].any():
        token = int(np.argmax(faults[:, 0] > 0))
        raise TokenError(fault_side(faults[token]), token, fault_reason(faults[token]))
    return Limits(columns, [float(alpha) for alpha in alphas])


def topk_divergences(
    teacher: TopK, student: TopK, *, alpha: float = 0.5, token_ids: IntArray | None = None
) -> Divergences:
    """Per-token intervals of both KLs and the GJS; arguments and errors as of `topk_limits`."""
    limits = topk_limits(teacher, student, alphas=(alpha,), token_ids=token_ids)
    return Divergences(limits.kl_teacher_student, limits.kl_student_teacher, limits.gjs(alpha))


def _limits(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    alphas: Sequence[float],
    vocab_size: int | None,
) -> Limits:
    def topk(ids: Any, logprobs: Any) -> TopK:  # Any: arrays, lists and frames' columns alike
        return TopK(np.asarray(ids), np.asarray(logprobs), vocab_size=vocab_size)

    return topk_limits(
        topk(teacher_ids, teacher_logprobs), topk(student_ids, student_logprobs), alphas=alphas
    )


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
    return _limits(teacher_ids, teacher_logprobs, student_ids, student_logprobs, (alpha,), None).gjs(alpha)


def topk_skew_kl(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    alpha: float = 0.5,
) -> Bounds:
    """Per-token interval of KL(T || alpha T + (1 - alpha) S); at most log(1 / alpha).

    Arguments and errors as of `topk_gjs`; for KL(S || alpha S + (1 - alpha) T), swap the models.
    """
    limits = _limits(teacher_ids, teacher_logprobs, student_ids, student_logprobs, (alpha,), None)
    return limits.skew_kl(alpha)


def topk_kl_teacher_student(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    *,
    vocab_size: int | None = None,
) -> Bounds:
    """Per-token interval of KL(teacher || student).

    Args:
        teacher_ids: Most likely ids of the teacher, shape [tokens, k].
        teacher_logprobs: Their logprobs, float32 or float64.
        student_ids: Of the student; k may differ.
        student_logprobs: Their logprobs.
        vocab_size: Number of ids of either model. `upper` is inf without it, or where neither list
            holds all of them.

    Raises:
        TokenError: Logprobs that are none.
        InputError: Shapes or dtypes do not fit.
    """
    lists = teacher_ids, teacher_logprobs, student_ids, student_logprobs
    return _limits(*lists, (), vocab_size).kl_teacher_student


def topk_kl_student_teacher(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    *,
    vocab_size: int | None = None,
) -> Bounds:
    """Per-token interval of KL(student || teacher); arguments and errors as of `topk_kl_teacher_student`."""
    lists = teacher_ids, teacher_logprobs, student_ids, student_logprobs
    return _limits(*lists, (), vocab_size).kl_student_teacher


def topk_total_variation(teacher: TopK, student: TopK, *, token_ids: IntArray | None = None) -> Bounds:
    """Per-token interval of sum |p - q| / 2; arguments and errors as of `topk_limits`."""
    return topk_limits(teacher, student, alphas=(), token_ids=token_ids).total_variation


def topk_entropy(ids: IntArray, logprobs: LogprobArray, *, vocab_size: int | None = None) -> Bounds:
    """Per-token interval of one model's entropy in nats.

    Args:
        ids: Its most likely ids, shape [tokens, k].
        logprobs: Their logprobs, float32 or float64.
        vocab_size: Number of its ids; without it `upper` is inf.

    Raises:
        TokenError: Logprobs that are none.
        InputError: Shapes or dtypes do not fit.
    """
    return _limits(ids, logprobs, ids, logprobs, (), vocab_size).entropy_teacher
