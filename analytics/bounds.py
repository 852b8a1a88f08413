r"""Certified limits of divergences between two distributions of which only parts are known.

A divergence here is D = sum_i phi(p_i, q_i) with phi convex and homogeneous of degree 1, and
phi(1, 1) = 0. Let a and b be the derivatives of phi to p and q at the ratio q/p = r. Then

    slack(p, q) = phi(p, q) - a p - b q  >=  0         for all p, q >= 0,

and because both distributions sum to 1,

    D = sum_i slack(p_i, q_i) + a + b = sum_i slack(p_i, q_i) - slack(1, 1).

Lower limit: ids known on both sides keep their slack, ids known on one side the least slack that
the other side's cap allows, and all other ids at least 0. Any r is valid (weak duality); the best
one balances what is left of both tails. It is the same for every phi. It is one number unless the
one-sided ids use up both tails, where a may be taken at a larger ratio than b.

Upper limit of the generalised Jensen-Shannon divergence: let r go to 0 in b and to infinity in a;
the slack is then negated, ids that are not known on both sides add nothing to the sum, and what
remains grows in p and in q. A KL has no upper limit while its first argument has mass left over.

Uncertain inputs: slack is convex, so at p (1 + s) it is at least slack + s p (dphi/dp - a), and
likewise in q. Each slack comes as these two halves, which Euler's theorem says sum to it; a half
loses its own size times the relative doubt.

Source: the dual of the convex problem "least D over all completions", Boyd and Vandenberghe
(2004), Convex Optimization, ch. 5; phi-divergences, Csiszar (1967).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.overlap import FloatArray, OneSided, Overlap, cell_sum

MAX_LOG_RATIO = 80.0
_SOLVER_STEPS = 40


class Ratio(NamedTuple):
    """Logarithms of the student's over the teacher's tail mass, shape [tokens], first <= second.

    Attributes:
        student: Where the derivative to q is taken.
        teacher: Where the derivative to p is taken.
    """

    student: FloatArray
    teacher: FloatArray


# The p half and the q half of a slack, from p, q, log(q / p) and the tail's ratio.
Slack = Callable[[FloatArray, FloatArray, FloatArray, Ratio], tuple[FloatArray, FloatArray]]


def kl_teacher_student_slack(
    p: FloatArray, q: FloatArray, log_ratio: FloatArray, tail: Ratio
) -> tuple[FloatArray, FloatArray]:
    """Of phi = p log(p / q)."""
    return p * (tail.teacher - log_ratio), q * np.exp(-tail.student) - p


def kl_student_teacher_slack(
    p: FloatArray, q: FloatArray, log_ratio: FloatArray, tail: Ratio
) -> tuple[FloatArray, FloatArray]:
    """Of phi = q log(q / p)."""
    return p * np.exp(tail.teacher) - q, q * (log_ratio - tail.student)


def gjs_slack(alpha: float) -> Slack:
    """Of phi = alpha p log(p / m) + (1 - alpha) q log(q / m), m = alpha p + (1 - alpha) q."""

    def slack(
        p: FloatArray, q: FloatArray, log_ratio: FloatArray, tail: Ratio
    ) -> tuple[FloatArray, FloatArray]:
        log_m = _log_mixture(alpha, log_ratio)
        p_half = alpha * p * (_log_mixture(alpha, tail.teacher) - log_m)
        tail_q = tail.student - _log_mixture(alpha, tail.student)
        return p_half, (1 - alpha) * q * ((log_ratio - log_m) - tail_q)

    return slack


def _log_mixture(alpha: float, log_ratio: FloatArray) -> FloatArray:
    """log(m / p)."""
    mixture: FloatArray = np.log(alpha + (1 - alpha) * np.exp(np.minimum(log_ratio, 700.0)))
    return mixture


def lower_limit(slack: Slack, overlap: Overlap, tail: Ratio) -> FloatArray:
    """The least value that any two distributions with this overlap can have, shape [tokens], at least 0."""
    teacher, student = overlap.teacher, overlap.student
    both = slack(overlap.p, overlap.q, overlap.log_q - overlap.log_p, tail)
    # The other side's best value keeps the ratio of the tail, as far as its cap allows.
    up = np.minimum(student.log_cap - teacher.log_mass, tail.student)
    teacher_only = slack(teacher.mass, np.exp(teacher.log_mass + up), up, tail)
    down = np.maximum(student.log_mass - teacher.log_cap, tail.teacher)
    student_only = slack(np.exp(student.log_mass - down), student.mass, down, tail)
    one = np.ones(overlap.p.shape[1])
    whole = slack(one, one, np.zeros_like(one), tail)

    total = -(whole[0] + whole[1])
    size = 2.0 + np.abs(whole[0]) + np.abs(whole[1])
    doubts = (
        (both, overlap.doubt_p, overlap.doubt_q),
        (teacher_only, teacher.doubt, 0.0),
        (student_only, 0.0, student.doubt),
    )
    for (p_half, q_half), doubt_p, doubt_q in doubts:
        p_size, q_size = np.abs(p_half), np.abs(q_half)
        total += cell_sum(p_half + q_half - doubt_p * p_size - doubt_q * q_size)
        size += cell_sum(p_size + q_size)
    return np.maximum(total - overlap.rounding * size, 0.0)


def gjs_upper_limit(alpha: float, overlap: Overlap) -> FloatArray:
    """The largest GJS that any two distributions with this overlap can have, shape [tokens]."""
    log_ratio = overlap.log_q - overlap.log_p
    log_m = _log_mixture(alpha, log_ratio)
    shared = alpha * overlap.p * (log_m - np.log(alpha))
    shared += (1 - alpha) * overlap.q * (log_m - np.log1p(-alpha) - log_ratio)
    certain = cell_sum(shared * (1.0 - np.maximum(overlap.doubt_p, overlap.doubt_q)))
    entropy = -alpha * np.log(alpha) - (1 - alpha) * np.log1p(-alpha)
    upper: FloatArray = entropy - certain + 2.0 * overlap.rounding
    return upper


def kl_upper_limits(overlap: Overlap) -> tuple[FloatArray, FloatArray]:
    """The largest KL(teacher || student) and KL(student || teacher), shape [tokens].

    Infinite, except where the first argument's list holds its whole vocabulary and the other list
    holds all of it too.
    """
    log_ratio = overlap.log_q - overlap.log_p
    return (
        _kl_upper(overlap.p, -log_ratio, overlap.doubt_p, overlap.doubt_q, overlap.teacher, overlap.rounding),
        _kl_upper(overlap.q, log_ratio, overlap.doubt_q, overlap.doubt_p, overlap.student, overlap.rounding),
    )


def _kl_upper(
    first: FloatArray,
    log_ratio: FloatArray,
    doubt_first: FloatArray,
    doubt_second: FloatArray,
    side: OneSided,
    rounding: float,
) -> FloatArray:
    upper = np.full(len(side.is_complete), np.inf)
    known = side.is_complete
    if known.any():
        gain = (log_ratio + doubt_first + doubt_second)[:, known]
        mass, doubt = first[:, known], doubt_first[:, known]
        size = mass * np.abs(gain)
        upper[known] = cell_sum(mass * gain + doubt * size) + rounding * (2.0 + cell_sum(size))
    return upper


def total_variation_limits(overlap: Overlap) -> tuple[FloatArray, FloatArray]:
    """The least and largest sum |p - q| / 2, shape [tokens].

    It is 1 less the shared mass sum min(p, q); one-sided ids share at most what the other side's
    cap and residual allow, and the rest of the tails at most the smaller of both.
    """
    teacher, student = overlap.teacher, overlap.student
    least = cell_sum(np.minimum(overlap.p * (1 - overlap.doubt_p), overlap.q * (1 - overlap.doubt_q)))
    most = cell_sum(np.minimum(overlap.p * (1 + overlap.doubt_p), overlap.q * (1 + overlap.doubt_q)))
    p_shared = cell_sum(np.minimum(teacher.mass * (1 + teacher.doubt), np.exp(student.log_cap)))
    q_shared = cell_sum(np.minimum(student.mass * (1 + student.doubt), np.exp(teacher.log_cap)))
    most += np.minimum(
        teacher.residual + np.minimum(p_shared, student.residual),
        student.residual + np.minimum(q_shared, teacher.residual),
    )
    lower = np.maximum(1.0 - most - 2.0 * overlap.rounding, 0.0)
    return lower, np.minimum(1.0 - least + 2.0 * overlap.rounding, 1.0)


def tail_ratio(overlap: Overlap) -> Ratio:
    """The ratios that make the lower limits largest, up to the solver's steps."""
    teacher = _Tail(overlap.teacher.mass, overlap.teacher.residual, np.exp(overlap.teacher.log_cap))
    student = _Tail(overlap.student.mass, overlap.student.residual, np.exp(overlap.student.log_cap))
    ratio, is_used_up = _balance(teacher, student)
    inverse = 1.0 / ratio
    if is_used_up.any():
        again = np.flatnonzero(is_used_up)
        other, _ = _balance(student.pick(again), teacher.pick(again))
        inverse[again] = np.minimum(other, inverse[again])
    return Ratio(np.log(ratio), -np.log(inverse))


class _Tail(NamedTuple):
    """Masses of one-sided ids [cells, tokens], mass outside the list, and the cap of an id there [tokens]."""

    mass: FloatArray
    residual: FloatArray
    cap: FloatArray

    def pick(self, tokens: NDArray[np.int64]) -> _Tail:
        # Not by indexing, which may transpose the memory and with it the order of sums.
        return _Tail(*(np.take(field, tokens, axis=-1) for field in self))

    def fill(self, other: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The residual less what capped ids of the other side take, and the mass of its other ids."""
        is_open = other * scale <= self.cap
        n_capped = len(other) - np.count_nonzero(is_open, axis=0)
        return self.residual - n_capped * self.cap, cell_sum(other * is_open)


def _balance(teacher: _Tail, student: _Tail) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The ratio r = q_tail(r) / p_tail(r), and whether the teacher's tail is used up there.

    A one-sided id of the teacher takes min(q_cap, p r) from the student's tail, one of the student
    min(p_cap, q / r) from the teacher's. Between the points where caps begin to bind the equation is
    linear in r, so Newton steps end exactly; a step out of the bracket is replaced by its middle.
    """
    ratio = (student.residual + cell_sum(student.mass)) / (teacher.residual + cell_sum(teacher.mass))
    low, high = (np.full(len(ratio), np.exp(sign * MAX_LOG_RATIO)) for sign in (-1.0, 1.0))
    ratio = np.clip(ratio, low, high)
    p_tail_at_end = np.empty_like(ratio)
    todo = np.arange(len(ratio))
    r = ratio.copy()
    for _ in range(_SOLVER_STEPS):
        q_fixed, p_open = student.fill(teacher.mass, r)
        p_fixed, q_open = teacher.fill(student.mass, 1.0 / r)
        p_tail, q_tail = p_fixed - q_open / r, q_fixed - p_open * r
        p_tail_at_end[todo] = p_tail
        is_low = r * np.maximum(p_tail, 0.0) < np.maximum(q_tail, 0.0)
        low, high = np.where(is_low, r, low), np.where(is_low, high, r)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(p_tail > 0, (q_fixed + q_open) / (p_fixed + p_open), q_fixed / p_open)
        step = np.where((step >= low) & (step <= high), step, np.sqrt(low * high))
        ratio[todo] = step
        moves = np.flatnonzero(np.abs(step - r) > 1e-12 * r)
        if not len(moves):
            break
        # A token stops at its own last step, whatever the others do.
        teacher, student = teacher.pick(moves), student.pick(moves)
        todo, r, low, high = todo[moves], step[moves], low[moves], high[moves]
    return ratio, p_tail_at_end < 0
