"""Unbiased estimates of a KL from tokens that one of the two models sampled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokscore.analytics.divergence.topk import (
    MAX_LOGPROB,
    PADDING,
    FloatArray,
    IntArray,
    LogprobArray,
    TokenError,
    TopK,
)
from tokscore.dataset.choices import Sampler
from tokscore.dataset.errors import InputError


class SampledKl(NamedTuple):
    """Estimates per sampled token in nats, each float64 of shape [tokens].

    With p the sampler, q the other model and x the sampled token, each has the mean KL(p || q) over x.

    Attributes:
        direction: "kl_teacher_student" where the teacher sampled, "kl_student_teacher" where the
            student did: the KL of the sampler from the other model, never the other way.
        k1: log p(x) - log q(x); negative for many tokens.
        k3: q(x)/p(x) - 1 - log(q(x)/p(x)); never negative. Its mean is the KL only where p gives
            every token a probability that q does.
        topk: The sum of p log(p/q) over ids that both lists hold, plus k1 where x is none of them.
            Equals k1 without lists.
    """

    direction: str
    k1: FloatArray
    k3: FloatArray
    topk: FloatArray


def sampled_kl(teacher: TopK, student: TopK, token_ids: IntArray, *, sampled_by: Sampler) -> SampledKl:
    """KL of the model that sampled the tokens from the other one, estimated without bias.

    Holds only where every token was drawn from the sampler's whole distribution at temperature 1,
    without top-k or top-p, and scored at temperature 1. The lists must not have been chosen by
    looking at the sampled token. Values are inf where the other model rules out a token.

    Args:
        teacher: Realised logprobs and top-k lists of the teacher; lists of shape [tokens, 0] if none.
        student: Of the student.
        token_ids: The sampled tokens, shape [tokens].
        sampled_by: The model that sampled them.

    Raises:
        TokenError: A logprob is NaN or above 0, a list holds an id twice, or the sampler gives a
            token that it sampled no probability.
        InputError: Shapes do not fit, or realised logprobs are missing.

    Source:
        k1 and k3: Schulman (2020), Approximating KL Divergence. `topk`: the known part of the sum
        taken exactly, after Rao and Blackwell; Amini, Vieira and Cotterell (2025), Better Estimation
        of the KL Divergence Between Language Models, do so with the whole vocabulary.
    """
    sides = {Sampler.TEACHER: teacher, Sampler.STUDENT: student}
    other_side = Sampler.STUDENT if sampled_by is Sampler.TEACHER else Sampler.TEACHER
    tokens = np.asarray(token_ids)
    ids, logprobs, realised = _checked(sides[sampled_by], tokens, sampled_by)
    other_ids, other_logprobs, other_realised = _checked(sides[other_side], tokens, other_side)
    impossible = np.isneginf(realised)
    if impossible.any():
        reason = "its logprob is -inf; expected a finite one, since this side sampled it."
        raise TokenError(sampled_by, int(np.argmax(impossible)), reason)
    k1 = realised - other_realised
    # expm1 keeps the digits where the two models nearly agree.
    with np.errstate(over="ignore"):
        k3 = np.expm1(-k1) + k1
    # Sorted by id, then by column: an id that both hold stands beside itself.
    n_columns = ids.shape[1]
    keys = np.sort(np.concatenate([ids, other_ids], axis=1) << 16 | np.arange(n_columns + other_ids.shape[1]))
    shared = (keys[:, 1:] >> 16 == keys[:, :-1] >> 16) & (keys[:, 1:] >= 0)
    rows, at = np.nonzero(shared)
    p = logprobs[rows, keys[rows, at] & 0xFFFF]
    q = other_logprobs[rows, (keys[rows, at + 1] & 0xFFFF) - n_columns]
    possible = np.isfinite(p)
    terms = np.exp(p[possible]) * (p[possible] - q[possible])
    known = np.bincount(rows[possible], terms, minlength=len(tokens)).astype(np.float64)
    is_known = np.zeros(len(tokens), bool)
    is_known[rows[keys[rows, at] >> 16 == tokens[rows]]] = True
    topk = known + np.where(is_known, 0.0, k1)
    return SampledKl(f"kl_{sampled_by}_{other_side}", k1, k3, topk)


def _checked(topk: TopK, tokens: IntArray, side: Sampler) -> tuple[IntArray, FloatArray, FloatArray]:
    """Ids, their logprobs and the realised ones."""
    if topk.realised is None:
        raise InputError(f"{side} has no realised logprobs; expected one per sampled token.")
    ids, n_tokens = np.asarray(topk.ids, np.int64), len(tokens)
    if (
        ids.shape != topk.logprobs.shape
        or ids.shape[:-1] != (n_tokens,)
        or topk.realised.shape != (n_tokens,)
    ):
        raise InputError(
            f"{side} ids have shape {ids.shape}, logprobs {topk.logprobs.shape}, realised logprobs "
            f"{topk.realised.shape}; expected [tokens, k] twice and [tokens], with {n_tokens} tokens."
        )
    logprobs = np.where(ids == PADDING, -np.inf, topk.logprobs.astype(np.float64))
    _check(logprobs, side)
    _check(topk.realised, side)
    in_order = np.sort(ids, axis=1)
    twice = ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != PADDING)).any(axis=1)
    if twice.any():
        raise TokenError(
            side, int(np.argmax(twice)), "an id is listed twice; expected every id at most once."
        )
    return ids, logprobs, topk.realised.astype(np.float64)


def _check(logprobs: LogprobArray, side: Sampler) -> None:
    bad = ~(logprobs <= MAX_LOGPROB)
    if bad.any():
        at = np.argwhere(bad)[0]
        raise TokenError(side, int(at[0]), f"a logprob is {logprobs[tuple(at)]:g}; expected at most 0.")
