"""Certified limits of divergences between two distributions of which only parts are known, per token.

Lower limits are dual values of the least divergence over all completions, at the ratio of what is left of
both tails: any ratio gives a valid one, the best is the same for every divergence. Every term comes as two
halves, one of p and one of q; a half loses its own size times the relative doubt of its input. Upper limits
are the values at disjoint tails. `docs/divergence.md` derives both.

Everything here is compiled, in float64, and in one file, as `compiled` asks for.

Source: Boyd and Vandenberghe (2004), Convex Optimization, ch. 5; Csiszar (1967) for phi-divergences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.compiled import compiled
from tokscore.analytics.divergence.topk import (
    FAULT_LOGPROB,
    FAULT_RANGE,
    FAULT_SUM,
    FAULT_TWICE,
    MAX_EXCESS,
    MAX_LOGPROB,
    FloatArray,
    Lists,
)

MAX_LOG_RATIO = 80.0
# Stands for the logprob -inf: as a probability it is 0, and sums with it stay finite.
LOG_ZERO = -1e300
# Beyond this log-ratio, the less likely side of a mixture is below the rounding of the other.
_LARGE_LOG_RATIO = 36.0
_MAX_DOUBT = 1e100
_ORDER_TOLERANCE = 1e-9
_SOLVER_STEPS = 40
_EPSILON = 2.0**-52


# Rows of the work space of one token, each as wide as both lists. Ids known on both sides:
LOG_P, LOG_Q, P, Q, DOUBT_P, DOUBT_Q = range(6)
# Ids known on one side: logprob, probability, its doubt, and the other side's best value and its ratio.
T_LOG, T_MASS, T_DOUBT, T_OTHER, T_RATIO = range(6, 11)
S_LOG, S_MASS, S_DOUBT, S_OTHER, S_RATIO = range(11, 16)
N_WORK_ROWS = 16

# Names of the result: what has a lower and an upper limit, masses, and what has limits for every alpha.
LIMITED = (
    "kl_teacher_student",
    "kl_student_teacher",
    "total_variation",
    "entropy_teacher",
    "entropy_student",
)
MASSES = ("unresolved_teacher", "unresolved_student")
AS_ONE = ("kl_tail_as_one_teacher_student", "kl_tail_as_one_student_teacher")
LIMITED_BY_ALPHA = ("gjs", "skew_kl")
# Their columns, as compiled code needs them.
KL_TEACHER_STUDENT, KL_STUDENT_TEACHER, TOTAL_VARIATION, ENTROPY_TEACHER, ENTROPY_STUDENT = range(0, 10, 2)
UNRESOLVED_TEACHER, UNRESOLVED_STUDENT = 10, 11
AS_ONE_TEACHER_STUDENT, AS_ONE_STUDENT_TEACHER = 12, 13
FIRST_ALPHA = 14
COLUMNS_PER_ALPHA = 4


def result_columns(alphas: Sequence[float]) -> list[str]:
    """Names of the columns that `limits_of_tokens` fills."""
    limited = [f"{name}_{alpha:g}" for alpha in alphas for name in LIMITED_BY_ALPHA]
    return [*_ends(LIMITED), *MASSES, *AS_ONE, *_ends(limited)]


def _ends(names: Sequence[str]) -> list[str]:
    return [f"{name}.{end}" for name in names for end in ("lower", "upper")]


class Side(NamedTuple):
    """The known probabilities of one model at one token.

    Attributes:
        n_alone: Ids known on this side only.
        n_known: Ids of this side's vocabulary that are known on it.
        residual: Upper limit of the mass of the others, above 0.
        least_residual: Lower limit of that mass.
        log_cap: Upper limit of the logprob of any id outside the list.
        unresolved: Mass of the ids that are not known on both sides.
        doubt: What rounding may add to that mass or take from it.
        vocab_size: Number of ids of the model, -1 where it is not known.
    """

    n_alone: int
    n_known: int
    residual: float
    least_residual: float
    log_cap: float
    unresolved: float
    doubt: float
    vocab_size: int


@compiled
def _log_mixture(alpha: float, ratio: float) -> float:
    """log(m / p) from q / p."""
    return math.log(alpha + (1.0 - alpha) * ratio)


@compiled
def _balance(
    t: FloatArray, t_residual: float, t_cap: float, s: FloatArray, s_residual: float, s_cap: float
) -> tuple[float, bool]:
    """The ratio r = q_tail(r) / p_tail(r), and whether the teacher's tail is used up there.

    A one-sided id of the teacher takes min(q_cap, p r) from the student's tail, one of the student
    min(p_cap, q / r) from the teacher's. Between the points where caps begin to bind the equation is
    linear in r, so Newton steps end exactly; a step out of the bracket is replaced by its middle.
    """
    low, high = math.exp(-MAX_LOG_RATIO), math.exp(MAX_LOG_RATIO)
    r = min(max((s_residual + s.sum()) / (t_residual + t.sum()), low), high)
    is_used_up = False
    for _ in range(_SOLVER_STEPS):
        q_fixed, p_open = s_residual, 0.0
        for mass in t:
            if mass * r <= s_cap:
                p_open += mass
            else:
                q_fixed -= s_cap
        p_fixed, q_open = t_residual, 0.0
        for mass in s:
            if mass <= t_cap * r:
                q_open += mass
            else:
                p_fixed -= t_cap
        p_tail, q_tail = p_fixed - q_open / r, q_fixed - p_open * r
        is_used_up = p_tail < 0
        if r * max(p_tail, 0.0) < max(q_tail, 0.0):
            low = r
        else:
            high = r
        step = (q_fixed + q_open) / (p_fixed + p_open) if p_tail > 0 else q_fixed / p_open
        if not low <= step <= high:
            step = math.sqrt(low * high)
        if abs(step - r) <= 1e-12 * r:
            return step, is_used_up
        r = step
    return r, is_used_up


@compiled
def _tail(work: FloatArray, teacher: Side, student: Side) -> tuple[float, float]:
    """Log q/p of the tails: where the derivative to p is taken, and where that to q; the first is larger.

    The other side's best values for one-sided ids, which keep the ratio of the tail as far as its cap
    allows, go to the work space.
    """
    t, s = work[T_MASS, : teacher.n_alone], work[S_MASS, : student.n_alone]
    t_cap, s_cap = math.exp(teacher.log_cap), math.exp(student.log_cap)
    ratio, is_used_up = _balance(t, teacher.residual, t_cap, s, student.residual, s_cap)
    inverse = 1.0 / ratio
    if is_used_up:
        other, _ = _balance(s, student.residual, s_cap, t, teacher.residual, t_cap)
        inverse = min(other, inverse)
    of_q, of_p = math.log(ratio), -math.log(inverse)
    for i in range(teacher.n_alone):
        up = min(student.log_cap - work[T_LOG, i], of_q)
        work[T_RATIO, i], work[T_OTHER, i] = up, math.exp(work[T_LOG, i] + up)
    for i in range(student.n_alone):
        down = max(work[S_LOG, i] - teacher.log_cap, of_p)
        work[S_RATIO, i], work[S_OTHER, i] = down, math.exp(work[S_LOG, i] - down)
    return of_p, of_q


@compiled
def _lower(total: float, size: float, whole_p: float, whole_q: float, rounding: float) -> float:
    """The limit from the sum of all slacks, the sum of their sizes, and the halves of slack(1, 1)."""
    size += 2.0 + abs(whole_p) + abs(whole_q)
    return max(total - (whole_p + whole_q) - rounding * size, 0.0)


@compiled
def _kl_lower(
    work: FloatArray, n_both: int, n_teacher: int, n_student: int, of_p: float, of_q: float, rounding: float
) -> tuple[float, float]:
    """Lower limits of KL(teacher || student), phi = p log(p / q), and of KL(student || teacher)."""
    exp_p, exp_q = math.exp(of_p), math.exp(-of_q)
    ts = ts_size = st = st_size = 0.0
    for i in range(n_both):
        p, q, x = work[P, i], work[Q, i], work[LOG_Q, i] - work[LOG_P, i]
        doubt_p, doubt_q = work[DOUBT_P, i], work[DOUBT_Q, i]
        a, b = p * (of_p - x), q * exp_q - p
        ts += a + b - doubt_p * abs(a) - doubt_q * abs(b)
        ts_size += abs(a) + abs(b)
        a, b = p * exp_p - q, q * (x - of_q)
        st += a + b - doubt_p * abs(a) - doubt_q * abs(b)
        st_size += abs(a) + abs(b)
    for i in range(n_teacher):
        p, q, x, doubt = work[T_MASS, i], work[T_OTHER, i], work[T_RATIO, i], work[T_DOUBT, i]
        a, b = p * (of_p - x), q * exp_q - p
        ts += a + b - doubt * abs(a)
        ts_size += abs(a) + abs(b)
        a, b = p * exp_p - q, q * (x - of_q)
        st += a + b - doubt * abs(a)
        st_size += abs(a) + abs(b)
    for i in range(n_student):
        p, q, x, doubt = work[S_OTHER, i], work[S_MASS, i], work[S_RATIO, i], work[S_DOUBT, i]
        a, b = p * (of_p - x), q * exp_q - p
        ts += a + b - doubt * abs(b)
        ts_size += abs(a) + abs(b)
        a, b = p * exp_p - q, q * (x - of_q)
        st += a + b - doubt * abs(b)
        st_size += abs(a) + abs(b)
    return (
        _lower(ts, ts_size, of_p, exp_q - 1.0, rounding),
        _lower(st, st_size, exp_p - 1.0, -of_q, rounding),
    )


@compiled
def _is_ruled_out(work: FloatArray, n_both: int, first: Side, second: Side, sign: float) -> bool:
    """Whether the second certainly gives no probability to an id that the first gives some."""
    mine, theirs, alone = (LOG_P, LOG_Q, T_LOG) if sign > 0 else (LOG_Q, LOG_P, S_LOG)
    for i in range(n_both):
        if work[theirs, i] <= LOG_ZERO < work[mine, i]:
            return True
    if second.log_cap <= LOG_ZERO:
        for i in range(first.n_alone):
            if work[alone, i] > LOG_ZERO:
                return True
    return False


@compiled
def _kl_upper(
    work: FloatArray, n_both: int, first: Side, second: Side, sign: float, rounding: float
) -> float:
    """Largest KL(first || second); `sign` is 1 where the teacher is the first.

    Finite where the first has no mass that the second may rule out: its list holds its whole vocabulary
    and the second lists all of it, or the second lists its whole vocabulary and the first has no other
    ids. Then what is left of the first goes to the least likely ids of the second, as far as its cap allows.
    """
    is_first_whole = first.n_known == first.vocab_size and first.n_alone == 0
    is_second_whole = second.n_known == second.vocab_size and 0 <= first.vocab_size <= second.vocab_size
    if not is_first_whole and not is_second_whole:
        return np.inf
    mass_row, doubt_row, other_row = (P, DOUBT_P, DOUBT_Q) if sign > 0 else (Q, DOUBT_Q, DOUBT_P)
    upper, size = 0.0, 2.0
    for i in range(n_both):
        mass, doubt = work[mass_row, i], work[doubt_row, i]
        if mass == 0.0:
            continue
        gain = sign * (work[LOG_P, i] - work[LOG_Q, i]) + doubt + work[other_row, i]
        upper += mass * gain + doubt * abs(mass * gain)
        size += abs(mass * gain)
    if not is_first_whole:
        logs, doubts = (S_LOG, S_DOUBT) if sign > 0 else (T_LOG, T_DOUBT)
        others = np.sort(work[logs, : second.n_alone] - work[doubts, : second.n_alone] * 1.01)
        left, cap = first.residual, math.exp(first.log_cap)
        if len(others) and others[0] <= LOG_ZERO < first.log_cap:
            return np.inf
        for log_other in others:
            # A share of less than the cap gains less per mass than the cap itself; none is a gain of 0.
            gain = min(left, cap) * (first.log_cap - log_other)
            if gain <= 0.0 or left <= 0.0:
                break
            upper += gain
            size += gain
            left -= cap
    return upper + rounding * size


@compiled
def _kl_as_one(work: FloatArray, n_both: int, first: Side, second: Side, sign: float) -> float:
    """KL(first || second) with all ids that are not known on both sides as one.

    That is at most the KL of the ids one by one (data-processing inequality). Its mass is known up
    to rounding, which is taken to its disadvantage.
    """
    mass_row = P if sign > 0 else Q
    total = 0.0
    for i in range(n_both):
        mass = work[mass_row, i]
        if mass > 0.0:
            total += mass * sign * (work[LOG_P, i] - work[LOG_Q, i])
    other = second.unresolved + second.doubt
    # p log(p / q) falls up to p = q / e and grows from there.
    least, most = max(first.unresolved - first.doubt, 0.0), first.unresolved + first.doubt
    mass = min(max(other / math.e, least), most)
    if mass > 0.0:
        total += mass * math.log(mass / other)
    return max(total, 0.0)


@compiled
def _mixture_limits(
    work: FloatArray, out: FloatArray, alpha: float, n_both: int, n_teacher: int, n_student: int,
    of_p: float, of_q: float, rounding: float,
) -> None:  # fmt: skip
    """Limits of the GJS and of the skew KL, which share m = alpha p + (1 - alpha) q.

    GJS: phi = alpha p log(p / m) + (1 - alpha) q log(q / m). Skew KL: phi = p log(p / m).
    """
    beta, log_alpha, log_beta = 1.0 - alpha, math.log(alpha), math.log1p(-alpha)
    at_p, at_q = _log_mixture(alpha, math.exp(of_p)), _log_mixture(alpha, math.exp(of_q))
    gjs_q = of_q - at_q
    skew_p, skew_q = 1.0 - at_p - alpha * math.exp(-at_p), -beta * math.exp(-at_q)
    gjs = gjs_size = skew = skew_size = gjs_shared = skew_shared = 0.0
    for i in range(n_both + n_teacher + n_student):
        doubt_p = doubt_q = 0.0
        if i < n_both:
            p, q, x = work[P, i], work[Q, i], work[LOG_Q, i] - work[LOG_P, i]
            doubt_p, doubt_q = work[DOUBT_P, i], work[DOUBT_Q, i]
        elif i < n_both + n_teacher:
            j = i - n_both
            p, q, x, doubt_p = work[T_MASS, j], work[T_OTHER, j], work[T_RATIO, j], work[T_DOUBT, j]
        else:
            j = i - n_both - n_teacher
            p, q, x, doubt_q = work[S_OTHER, j], work[S_MASS, j], work[S_RATIO, j], work[S_DOUBT, j]
        # log(m / p), log(q / m) and log(m / (beta q)); alpha p / m and beta p / m.
        if x <= _LARGE_LOG_RATIO:
            mixture = alpha + beta * (q / p if p > 1e-290 else math.exp(x))
            log_m = math.log(mixture)
            log_n, surplus = x - log_m, log_m - log_beta - x
            share, other_share = alpha / mixture, beta / mixture
        else:
            inverse = math.exp(-x)
            mixture = beta + alpha * inverse
            log_n = -math.log(mixture)
            log_m, surplus = x - log_n, -log_n - log_beta
            share, other_share = alpha * inverse / mixture, beta * inverse / mixture
        if i < n_both:
            certain = 1.0 - min(max(doubt_p, doubt_q), 1.0)
            gjs_shared += certain * (alpha * p * (log_m - log_alpha) + beta * q * surplus)
            skew_shared += certain * p * (log_m - log_alpha)
        a, b = alpha * p * (at_p - log_m), beta * q * (log_n - gjs_q)
        gjs += a + b - doubt_p * abs(a) - doubt_q * abs(b)
        gjs_size += abs(a) + abs(b)
        a, b = p * ((1.0 - log_m - share) - skew_p), q * (-other_share - skew_q)
        skew += a + b - doubt_p * abs(a) - doubt_q * abs(b)
        skew_size += abs(a) + abs(b)
    at_1 = math.log(alpha + beta)
    entropy = -alpha * log_alpha - beta * log_beta
    out[0] = _lower(gjs, gjs_size, alpha * (at_p - at_1), beta * (-at_1 - gjs_q), rounding)
    out[1] = entropy - gjs_shared + 2.0 * rounding
    out[2] = _lower(skew, skew_size, (1.0 - at_1 - alpha) - skew_p, -beta - skew_q, rounding)
    out[3] = -log_alpha * (1.0 + 2.0 * rounding) - skew_shared + 2.0 * rounding


@compiled
def _total_variation(
    work: FloatArray, n_both: int, teacher: Side, student: Side, rounding: float
) -> tuple[float, float]:
    """Limits of sum |p - q| / 2, which is 1 less the shared mass sum min(p, q).

    One-sided ids share at most what the other side's cap and residual allow, and the rest of the tails
    at most the smaller of both.
    """
    least = most = p_shared = q_shared = 0.0
    for i in range(n_both):
        p, q, doubt_p, doubt_q = work[P, i], work[Q, i], work[DOUBT_P, i], work[DOUBT_Q, i]
        least += min(p * (1.0 - doubt_p), q * (1.0 - doubt_q))
        most += min(p * (1.0 + doubt_p), q * (1.0 + doubt_q))
    t_cap, s_cap = math.exp(teacher.log_cap), math.exp(student.log_cap)
    for i in range(teacher.n_alone):
        p_shared += min(work[T_MASS, i] * (1.0 + work[T_DOUBT, i]), s_cap)
    for i in range(student.n_alone):
        q_shared += min(work[S_MASS, i] * (1.0 + work[S_DOUBT, i]), t_cap)
    most += min(
        teacher.residual + min(p_shared, student.residual),
        student.residual + min(q_shared, teacher.residual),
    )
    return max(1.0 - most - 2.0 * rounding, 0.0), min(1.0 - least + 2.0 * rounding, 1.0)


@compiled
def _entropy(
    work: FloatArray, rows: tuple[int, int, int, int, int, int], n_both: int, side: Side, rounding: float
) -> tuple[float, float]:
    """Limits of -sum p log p: what is left lies on as few ids as the cap allows, or evenly on all others."""
    log_both, both, doubt_both, log_alone, alone, doubt_alone = rows
    head = doubt = 0.0
    for i in range(n_both):
        head -= work[both, i] * work[log_both, i]
        doubt += work[both, i] * work[doubt_both, i] * (1.0 + abs(work[log_both, i]))
    for i in range(side.n_alone):
        head -= work[alone, i] * work[log_alone, i]
        doubt += work[alone, i] * work[doubt_alone, i] * (1.0 + abs(work[log_alone, i]))
    doubt += rounding * (2.0 + abs(head))
    cap, left = math.exp(side.log_cap), side.least_residual
    if side.vocab_size >= 0:
        # No more than all other ids can hold, where the list sums to too little.
        left = min(left, max(side.vocab_size - side.n_known, 0) * cap)
    lower = head - doubt
    if cap > 1e-290:
        n_full = math.floor(left / cap)
        rest = max(left - n_full * cap, 0.0)
        lower += n_full * cap * max(-side.log_cap, 0.0)
        if 0.0 < rest < 1.0:
            lower -= rest * math.log(rest)
    else:
        lower -= left * side.log_cap
    upper = np.inf
    if side.vocab_size >= 0:
        n_others = side.vocab_size - side.n_known
        upper = head + doubt
        if n_others > 0:
            # R (log n - log R) grows up to R = n / e.
            left = min(max(n_others / math.e, side.least_residual), side.residual)
            upper += left * (math.log(n_others) - math.log(left))
    return max(lower, 0.0), upper


@compiled
def _token_limits(
    work: FloatArray, n_both: int, teacher: Side, student: Side, has_zero: bool, alphas: FloatArray,
    out: FloatArray,
) -> None:  # fmt: skip
    """All limits of one token, from a work space whose first three rows of each kind are filled."""
    rounding = _EPSILON * (64 + n_both + n_both + teacher.n_alone + student.n_alone)
    of_p, of_q = _tail(work, teacher, student)
    limits = _kl_lower(work, n_both, teacher.n_alone, student.n_alone, of_p, of_q, rounding)
    out[KL_TEACHER_STUDENT], out[KL_STUDENT_TEACHER] = limits
    out[KL_TEACHER_STUDENT + 1] = _kl_upper(work, n_both, teacher, student, 1.0, rounding)
    out[KL_STUDENT_TEACHER + 1] = _kl_upper(work, n_both, student, teacher, -1.0, rounding)
    if has_zero:
        if _is_ruled_out(work, n_both, teacher, student, 1.0):
            out[KL_TEACHER_STUDENT : KL_TEACHER_STUDENT + 2] = np.inf
        if _is_ruled_out(work, n_both, student, teacher, -1.0):
            out[KL_STUDENT_TEACHER : KL_STUDENT_TEACHER + 2] = np.inf
    as_one = np.inf if np.isinf(out[KL_TEACHER_STUDENT]) else _kl_as_one(work, n_both, teacher, student, 1.0)
    out[AS_ONE_TEACHER_STUDENT] = as_one
    as_one = np.inf if np.isinf(out[KL_STUDENT_TEACHER]) else _kl_as_one(work, n_both, student, teacher, -1.0)
    out[AS_ONE_STUDENT_TEACHER] = as_one
    limits = _total_variation(work, n_both, teacher, student, rounding)
    out[TOTAL_VARIATION], out[TOTAL_VARIATION + 1] = limits
    limits = _entropy(work, (LOG_P, P, DOUBT_P, T_LOG, T_MASS, T_DOUBT), n_both, teacher, rounding)
    out[ENTROPY_TEACHER], out[ENTROPY_TEACHER + 1] = limits
    limits = _entropy(work, (LOG_Q, Q, DOUBT_Q, S_LOG, S_MASS, S_DOUBT), n_both, student, rounding)
    out[ENTROPY_STUDENT], out[ENTROPY_STUDENT + 1] = limits
    out[UNRESOLVED_TEACHER], out[UNRESOLVED_STUDENT] = teacher.unresolved, student.unresolved
    for i in range(len(alphas)):
        column = FIRST_ALPHA + COLUMNS_PER_ALPHA * i
        _mixture_limits(
            work, out[column : column + COLUMNS_PER_ALPHA], alphas[i], n_both,
            teacher.n_alone, student.n_alone, of_p, of_q, rounding,
        )  # fmt: skip


@compiled
def _find(keys: NDArray[np.int32], stamps: NDArray[np.int64], stamp: int, token_id: int) -> int:
    """Place of an id in a hash table, or the free place where it belongs."""
    mask = len(keys) - 1
    place = int(((np.int64(token_id) * 2654435761) >> 8) & mask)
    while stamps[place] == stamp and keys[place] != token_id:
        place = (place + 1) & mask
    return place


@compiled
def _side(
    work: FloatArray, unit: float, vocab_size: int, n_both: int, n_alone: int, n_beyond: int, cap: float,
    both_row: int, alone_row: int,
) -> tuple[Side, float]:  # fmt: skip
    """Probabilities and doubts of one side from its logprobs, and the sum of the probabilities.

    Ids beyond its vocabulary, which only the other model has, are known to have none.
    """
    total = both = 0.0
    for i in range(n_both):
        mass = math.exp(work[both_row, i])
        work[both_row + 2, i] = mass
        both += mass
    for i in range(n_alone):
        mass = math.exp(work[alone_row, i])
        work[alone_row + 1, i] = mass
        total += mass
    total += both
    n_known = n_both + n_alone - n_beyond
    # Nothing else has any probability: all ids are listed, or the least likely of them has none.
    is_whole = n_known == vocab_size or cap <= LOG_ZERO
    # A sum above 1, and one below where nothing else is, shows by how much, at least, this row is off.
    excess = abs(total - 1.0) / min(total, 1.0) if is_whole else max(total - 1.0, 0.0)
    left = _EPSILON * (64 + n_both + n_alone)
    for i in range(n_both):
        work[both_row + 4, i] = _doubt(work[both_row, i], unit, excess)
        left += work[both_row + 2, i] * work[both_row + 4, i]
    for i in range(n_alone):
        work[alone_row + 2, i] = _doubt(work[alone_row, i], unit, excess)
        left += work[alone_row + 1, i] * work[alone_row + 2, i]
    rest = 0.0 if is_whole else max(1.0 - total, 0.0)
    log_cap = cap + _doubt(cap, unit, excess)
    unresolved = min(max(1.0 - both, 0.0), 1.0)
    least = max(rest - left, 0.0)
    return Side(n_alone, n_known, rest + left, least, log_cap, unresolved, left, vocab_size), total


@compiled
def _doubt(logprob: float, unit: float, excess: float) -> float:
    """Relative uncertainty of exp(logprob): exp(d) - 1 <= d + d^2 for d <= 1."""
    log_doubt = min(unit * max(1.0, abs(logprob)), _MAX_DOUBT) + excess
    return log_doubt + log_doubt * log_doubt


@compiled
def _note(fault: FloatArray, kind: float, side: int, token_id: int, value: float) -> None:
    fault[0], fault[1], fault[2], fault[3] = kind, side, token_id, value


@compiled
def _check_ranges(values: FloatArray, ranges: FloatArray, fault: FloatArray) -> None:
    """Note a value that cannot be, a NaN, or limits in the wrong order."""
    for i in range(len(values)):
        value, is_limit = values[i], not UNRESOLVED_TEACHER <= i < FIRST_ALPHA
        is_ordered = not is_limit or i % 2 == 0 or values[i - 1] <= value + _ORDER_TOLERANCE
        if not (ranges[0, i] <= value <= ranges[1, i] and is_ordered):
            _note(fault, FAULT_RANGE, 0, i, value)


@compiled
def limits_of_tokens(
    teacher: Lists,
    student: Lists,
    token_ids: NDArray[np.int32],
    alphas: FloatArray,
    ranges: FloatArray,
    out: FloatArray,
    faults: FloatArray,
) -> None:
    """All limits of some tokens.

    Args:
        teacher: Its lists.
        student: Its lists.
        token_ids: The tokens that are there; of any length where `realised` is not given.
        alphas: Weights of the teacher, each above 0 and below 1.
        ranges: Least and largest value of each column, shape [2, columns].
        out: Takes the columns of `result_columns`, shape [tokens, columns].
        faults: Takes what is wrong with a token, shape [tokens, 4]: 0 for nothing, or one of the `FAULT_`
            constants; the side, 0 for the teacher; an id; and a value.
    """
    n_tokens = len(teacher.starts)
    width = 2
    for token in range(n_tokens):
        n_known = teacher.lengths[token] + student.lengths[token]
        if len(teacher.given_lengths):
            n_known += teacher.given_lengths[token]
        if len(student.given_lengths):
            n_known += student.given_lengths[token]
        width = max(width, n_known + 2)
    work = np.empty((N_WORK_ROWS, width))
    size = 16
    while size < 2 * width:
        size *= 2
    keys, stamps, owners = np.empty(size, np.int32), np.zeros(size, np.int64), np.empty(size, np.int64)
    # The ids that are given come after those of a list, then the token that is there.
    n_extra_teacher, n_extra_student = min(len(teacher.realised), 1), min(len(student.realised), 1)
    logs, alone_ids = np.empty(width), np.empty(width, np.int32)
    for token in range(n_tokens):
        faults[token, 0] = 0.0
        t_cap = s_cap = 0.0
        n_teacher = n_student = n_both = beyond_teacher = beyond_student = 0
        has_zero = False
        for side in range(2):
            # Picked here once: picking a whole side, or in every round, would cost more than the rest.
            ids = teacher.ids if side == 0 else student.ids
            logprobs = teacher.logprobs if side == 0 else student.logprobs
            start = teacher.starts[token] if side == 0 else student.starts[token]
            n_listed = teacher.lengths[token] if side == 0 else student.lengths[token]
            given_ids = teacher.given_ids if side == 0 else student.given_ids
            given_logprobs = teacher.given_logprobs if side == 0 else student.given_logprobs
            given_start = n_given = n_beyond = 0
            if side == 0 and len(teacher.given_lengths):
                given_start, n_given = teacher.given_starts[token], teacher.given_lengths[token]
            elif side == 1 and len(student.given_lengths):
                given_start, n_given = student.given_starts[token], student.given_lengths[token]
            vocab_size = teacher.vocab_size if side == 0 else student.vocab_size
            n_all = n_listed + n_given + (n_extra_teacher if side == 0 else n_extra_student)
            cap = np.inf
            for i in range(n_all):
                if i < n_listed:
                    token_id, logprob = ids[start + i], logprobs[start + i]
                elif i < n_listed + n_given:
                    place = given_start + i - n_listed
                    token_id, logprob = given_ids[place], given_logprobs[place]
                else:
                    token_id = token_ids[token]
                    logprob = teacher.realised[token] if side == 0 else student.realised[token]
                if token_id < 0:
                    continue
                # Not by the opposite, since NaN is to be caught.
                if not logprob <= MAX_LOGPROB:
                    _note(faults[token], FAULT_LOGPROB, side, token_id, logprob)
                if logprob <= LOG_ZERO:
                    logprob, has_zero = LOG_ZERO, True
                place = _find(keys, stamps, token + 1, token_id)
                is_new = stamps[place] != token + 1
                # The owner of a place: a teacher's entry by its number, a student's or matched one as -1.
                if i < n_listed:
                    cap = min(cap, logprob)
                    if not is_new and (side == 0 or owners[place] < 0):
                        _note(faults[token], FAULT_TWICE, side, token_id, logprob)
                elif not is_new and (side == 0 or owners[place] < 0):
                    continue
                if 0 <= vocab_size <= token_id:
                    n_beyond += 1
                if is_new:
                    stamps[place], keys[place] = token + 1, token_id
                if side == 0:
                    owners[place], logs[n_teacher], alone_ids[n_teacher] = n_teacher, logprob, token_id
                    n_teacher += 1
                elif is_new:
                    owners[place] = -1
                    work[S_LOG, n_student] = logprob
                    n_student += 1
                else:
                    work[LOG_P, n_both], work[LOG_Q, n_both] = logs[owners[place]], logprob
                    owners[place] = -1
                    n_both += 1
            if cap == np.inf:  # a list without entries caps nothing
                cap = 0.0
            if side == 0:
                t_cap, beyond_teacher = cap, n_beyond
            else:
                s_cap, beyond_student = cap, n_beyond
        if faults[token, 0]:
            continue
        n_alone = 0
        for i in range(n_teacher):
            if owners[_find(keys, stamps, token + 1, alone_ids[i])] >= 0:
                work[T_LOG, n_alone] = logs[i]
                n_alone += 1
        of_teacher, p_sum = _side(
            work, teacher.unit, teacher.vocab_size, n_both, n_alone, beyond_teacher, t_cap, LOG_P, T_LOG
        )
        of_student, q_sum = _side(
            work, student.unit, student.vocab_size, n_both, n_student, beyond_student, s_cap, LOG_Q, S_LOG
        )
        is_p_whole = of_teacher.n_known == teacher.vocab_size or t_cap <= LOG_ZERO
        is_q_whole = of_student.n_known == student.vocab_size or s_cap <= LOG_ZERO
        if p_sum > 1.0 + MAX_EXCESS or (is_p_whole and p_sum < 1.0 - MAX_EXCESS):
            _note(faults[token], FAULT_SUM, 0, -1, p_sum)
        elif q_sum > 1.0 + MAX_EXCESS or (is_q_whole and q_sum < 1.0 - MAX_EXCESS):
            _note(faults[token], FAULT_SUM, 1, -1, q_sum)
        else:
            _token_limits(work, n_both, of_teacher, of_student, has_zero, alphas, out[token])
            _check_ranges(out[token], ranges, faults[token])
