"""Divergences of two models per token, as intervals that contain the value over the whole vocabulary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.measures import (
    Bounds,
    TokenMeasures,
    compute,
    measures,
    range_reason,
    ranges_of,
)
from tokscore.analytics.divergence.topk import (
    FAULT_RANGE,
    FAULT_UNDEFINED,
    SIDES,
    Fault,
    FloatArray,
    IntArray,
    Lists,
    LogprobArray,
    TokenError,
    TopK,
    checked_ids,
    fault_of,
    lists_of,
)
from tokscore.dataset.errors import InputError, UsageError

# What one thread takes at a time.
BLOCK_TOKENS = 16_384


class Divergences(NamedTuple):
    """The divergences most asked for, of the same tokens."""

    kl_teacher_student: Bounds
    kl_student_teacher: Bounds
    gjs: Bounds


def check_alpha(alpha: float) -> None:
    """Raise a `UsageError` unless 0 < alpha < 1."""
    if not isinstance(alpha, SupportsFloat):
        raise UsageError(f"alpha is {alpha!r}; expected a number between 0 and 1.")
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
) -> TokenMeasures:
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
        TokenError: A logprob is NaN or above 0, or lists contradict themselves; `token` says where.
        InputError: Shapes or dtypes do not fit.

    Source:
        Lin (1991), Divergence Measures Based on the Shannon Entropy, for the GJS; Lee (1999), Measures
        of Distributional Similarity, for the skew KL; see `docs/divergence.md` for the limits.
    """
    alphas = checked_alphas(alphas) if alphas else []
    realised = None if token_ids is None else checked_ids(token_ids, "realised")
    mine, theirs = lists_of(teacher, "teacher", realised), lists_of(student, "student", realised)
    if len(mine.starts) != len(theirs.starts):
        raise InputError(
            f"teacher has {len(mine.starts)} tokens, student {len(theirs.starts)}; expected as many."
        )
    if realised is None:
        realised = np.empty(0, np.int32)
    found, faults = measure_tokens(mine, theirs, realised, alphas)
    if faults:
        token = min(faults)
        raise TokenError(faults[token].side, token, faults[token].reason)
    return found


def measure_tokens(
    teacher: Lists,
    student: Lists,
    token_ids: NDArray[np.int32],
    alphas: Sequence[float],
    realised: tuple[FloatArray, FloatArray] | None = None,
    n_threads: int | None = None,
) -> tuple[TokenMeasures, dict[int, Fault]]:
    """All measures of some tokens, and what is wrong with tokens by their row.

    Args:
        teacher: Its lists.
        student: Its lists.
        token_ids: The tokens that are there; of any length where `realised` is not given in the lists.
        alphas: Weights of the teacher, each above 0 and below 1.
        realised: Logprobs of these tokens by both models, for the measures of them.
        n_threads: All cores if None.
    """
    from tokscore.analytics.divergence.kernel import limits_of_tokens, result_columns

    names, n_tokens = result_columns(alphas), len(teacher.starts)
    columns, faults = np.zeros((n_tokens, len(names))), np.zeros((n_tokens, 4))
    weights, ranges = np.array(alphas, np.float64), ranges_of(names, alphas)

    def run(start: int) -> None:
        rows = slice(start, start + BLOCK_TOKENS)
        limits_of_tokens(
            teacher.rows(rows),
            student.rows(rows),
            token_ids[rows],
            weights,
            ranges,
            columns[rows],
            faults[rows],
        )

    blocks = range(0, max(n_tokens, 1), BLOCK_TOKENS)
    if len(blocks) == 1 or n_threads == 1:
        for start in blocks:
            run(start)
    else:
        with ThreadPoolExecutor(n_threads or os.cpu_count()) as pool:
            list(pool.map(run, blocks))
    found = TokenMeasures(
        tuple(float(alpha) for alpha in alphas),
        dict(zip(names, columns.T, strict=True)),
        teacher,
        student,
        token_ids,
    )
    if realised is not None:
        found.columns["teacher_logprob"], found.columns["student_logprob"] = realised
        undefined = np.isneginf(realised[0]) & np.isneginf(realised[1])
        for token in np.flatnonzero(undefined).tolist():
            faults[token] = FAULT_UNDEFINED, 1, token_ids[token], -np.inf
    reasons = {}
    for token in np.flatnonzero(faults[:, 0]).tolist():
        reasons[token] = fault_of(faults[token])
        if faults[token, 0] == FAULT_RANGE:
            column = names[int(faults[token, 2])]
            measure = next(row for row in measures(alphas) if column in row.columns)
            lower, upper = (found[measure.columns[end]][token] for end in (0, -1))
            reasons[token] = Fault(SIDES[0], range_reason(measure, lower, upper))
    for token, reason in compute(found).items():
        reasons.setdefault(token, Fault(SIDES[0], reason))
    return found, reasons


def topk_divergences(
    teacher: TopK, student: TopK, *, alpha: float = 0.5, token_ids: IntArray | None = None
) -> Divergences:
    """Per-token intervals of both KLs and the GJS; arguments and errors as of `topk_limits`."""
    limits = topk_limits(teacher, student, alphas=(alpha,), token_ids=token_ids)
    return Divergences(
        limits.of("kl_teacher_student"), limits.of("kl_student_teacher"), limits.of("gjs", alpha)
    )


def _limits(
    teacher_ids: IntArray,
    teacher_logprobs: LogprobArray,
    student_ids: IntArray,
    student_logprobs: LogprobArray,
    alphas: Sequence[float],
    vocab_size: int | None,
) -> TokenMeasures:
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
        TokenError: A logprob is NaN or above 0, or a list contradicts itself.
        InputError: Shapes or dtypes do not fit.
    """
    limits = _limits(teacher_ids, teacher_logprobs, student_ids, student_logprobs, (alpha,), None)
    return limits.of("gjs", alpha)


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
    return limits.of("skew_kl", alpha)


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
        TokenError: A logprob is NaN or above 0, or a list contradicts itself.
        InputError: Shapes or dtypes do not fit.
    """
    lists = teacher_ids, teacher_logprobs, student_ids, student_logprobs
    return _limits(*lists, (), vocab_size).of("kl_teacher_student")


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
    return _limits(*lists, (), vocab_size).of("kl_student_teacher")


def topk_total_variation(teacher: TopK, student: TopK, *, token_ids: IntArray | None = None) -> Bounds:
    """Per-token interval of sum |p - q| / 2; arguments and errors as of `topk_limits`."""
    return topk_limits(teacher, student, alphas=(), token_ids=token_ids).of("total_variation")


def topk_entropy(ids: IntArray, logprobs: LogprobArray, *, vocab_size: int | None = None) -> Bounds:
    """Per-token interval of one model's entropy in nats.

    Args:
        ids: Its most likely ids, shape [tokens, k].
        logprobs: Their logprobs, float32 or float64.
        vocab_size: Number of its ids; without it `upper` is inf.

    Raises:
        TokenError: A logprob is NaN or above 0, or a list contradicts itself.
        InputError: Shapes or dtypes do not fit.
    """
    return _limits(ids, logprobs, ids, logprobs, (), vocab_size).of("entropy_teacher")
