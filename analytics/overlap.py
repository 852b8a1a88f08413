"""Two top-k lists laid side by side: what is known of both models, and what of one only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.rendering.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.integer]
LogprobArray = NDArray[np.float32] | NDArray[np.float64]

# A stored logprob x is known within ULPS * unit * max(1, |x|), unit being half the spacing of its
# dtype at 1. Rounding costs one such unit; the rest is for the last operations of an engine.
ULPS = 4
UNITS = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}

# Engines return a certain token's logprob as a few 1e-7 above 0, and sums as much above 1.
MAX_LOGPROB = 1e-5
MAX_EXCESS = 1e-3

PADDING = -1  # the id of an entry that is not there
NOTHING = -1600.0  # the logprob of a cell that is not there: exp gives 0, and still does times exp(80)


class TokenError(InputError):
    """A token whose logprobs cannot be used.

    Attributes:
        side: "teacher" or "student".
        token: Its row in the arrays.
        reason: What was found and what was expected.
    """

    def __init__(self, side: str, token: int, reason: str) -> None:
        self.side = side
        self.token = token
        self.reason = reason
        super().__init__(side, token, reason)

    def __str__(self) -> str:
        return f"{self.side}, token {self.token}: {self.reason}"


class TopK(NamedTuple):
    """What one model says about each token.

    Attributes:
        ids: The most likely ids, shape [tokens, k], each at most once a row; -1 where a list is shorter.
        logprobs: Their logprobs, float32 or float64, same shape, in any order.
        realised: Logprob of the token that is there, shape [tokens], or None. Needs `token_ids`.
        vocab_size: Number of ids the model gives a probability to. It certifies that nothing is
            left out, where the lists hold all of them.
    """

    ids: IntArray
    logprobs: LogprobArray
    realised: LogprobArray | None = None
    vocab_size: int | None = None

    def rows(self, start: int, stop: int) -> TopK:
        """The tokens [start, stop)."""
        realised = None if self.realised is None else self.realised[start:stop]
        return TopK(self.ids[start:stop], self.logprobs[start:stop], realised, self.vocab_size)


class OneSided(NamedTuple):
    """What one model's list says that the other's does not, arrays of shape [cells, tokens] or [tokens].

    Attributes:
        log_mass: Logprobs of ids known on this side only, `NOTHING` elsewhere.
        mass: Their exponential.
        doubt: Relative uncertainty of `mass`.
        residual: Upper limit of the mass outside this side's list, always above 0.
        log_cap: Upper limit of the logprob of any id outside this side's list.
        unresolved: Mass of the ids that are not known on both sides.
        is_complete: The list holds the whole vocabulary, and the other list all of it too.
    """

    log_mass: FloatArray
    mass: FloatArray
    doubt: FloatArray
    residual: FloatArray
    log_cap: FloatArray
    unresolved: FloatArray
    is_complete: NDArray[np.bool_]


class Overlap(NamedTuple):
    """Both lists by id: cells known on both sides, shape [cells, tokens], and the rest.

    Attributes:
        log_p: Teacher logprobs, `NOTHING` where a cell is unused.
        log_q: Student logprobs of the same ids.
        p: Their exponential.
        q: Likewise.
        doubt_p: Relative uncertainty of `p`.
        doubt_q: Of `q`.
        teacher: Ids in the teacher's list only.
        student: Ids in the student's list only.
        rounding: Relative error of sums over cells, of float64 itself.
    """

    log_p: FloatArray
    log_q: FloatArray
    p: FloatArray
    q: FloatArray
    doubt_p: FloatArray
    doubt_q: FloatArray
    teacher: OneSided
    student: OneSided
    rounding: float


class _Columns(NamedTuple):
    """A checked list with the realised token as its last column, shape [tokens, columns]."""

    ids: NDArray[np.int64]
    logprobs: FloatArray
    cap: FloatArray  # least logprob of the top-k, shape [tokens]
    unit: float
    vocab_size: int | None
    side: str


def join(teacher: TopK, student: TopK, token_ids: IntArray | None = None) -> Overlap:
    """Match two lists by id.

    Args:
        teacher: The list of one model.
        student: The list of the other, for the same tokens.
        token_ids: The token that is there, shape [tokens], if the realised logprobs are to count.

    Raises:
        TokenError: A logprob is NaN, infinite or above 0, a list holds an id twice, or its
            probabilities sum to more than 1.
        InputError: Shapes or dtypes do not fit.
    """
    mine = _columns(teacher, token_ids, "teacher")
    theirs = _columns(student, token_ids, "student")
    if len(mine.ids) != len(theirs.ids):
        raise InputError(f"teacher has {len(mine.ids)} tokens, student {len(theirs.ids)}; expected as many.")
    rows, mine_at, theirs_at = _matches(mine.ids, theirs.ids)

    log_p = np.full(mine.ids.shape[::-1], NOTHING)
    log_q = np.full(mine.ids.shape[::-1], NOTHING)
    log_p[mine_at, rows] = mine.logprobs[rows, mine_at]
    log_q[mine_at, rows] = theirs.logprobs[rows, theirs_at]
    n_both = np.bincount(rows, minlength=len(mine.ids))

    n_cells = mine.ids.shape[1] + theirs.ids.shape[1]
    rounding = 2.0**-52 * (64 + n_cells)
    p, doubt_p, left = _one_sided(mine, log_p, (rows, mine_at), n_both, rounding)
    q, doubt_q, right = _one_sided(theirs, log_q, (rows, theirs_at), n_both, rounding)
    return Overlap(log_p, log_q, p, q, doubt_p, doubt_q, left, right, rounding)


def _one_sided(
    columns: _Columns,
    log_both: FloatArray,
    matched: tuple[NDArray[np.int64], NDArray[np.int64]],
    n_both: NDArray[np.int64],
    rounding: float,
) -> tuple[FloatArray, FloatArray, OneSided]:
    """Probabilities and doubts of the shared cells, and the rest of this side."""
    alone = np.where(columns.ids == PADDING, NOTHING, columns.logprobs)
    n_known = np.count_nonzero(columns.ids != PADDING, axis=1)
    alone[matched] = NOTHING
    log_mass = np.ascontiguousarray(alone.T)
    mass, both = np.exp(log_mass), np.exp(log_both)
    mass_both = cell_sum(both)
    total = cell_sum(mass) + mass_both
    # A sum above 1 shows by how much, at least, this row is off.
    excess = np.maximum(total - 1.0, 0.0)
    if (excess > MAX_EXCESS).any():
        token = int(np.argmax(excess))
        reason = f"the listed probabilities sum to {total[token]:.6g}; expected at most 1."
        raise TokenError(columns.side, token, f"{reason} Were they rounded to half precision?")
    unit = ULPS * columns.unit

    def doubt(logprobs: FloatArray) -> FloatArray:
        log_doubt = unit * np.maximum(1.0, np.abs(logprobs)) + excess
        # exp(d) - 1 <= d + d^2 for d <= 1
        return log_doubt + log_doubt**2

    doubt_alone, doubt_both = doubt(log_mass), doubt(log_both)
    residual_doubt = cell_sum(mass * doubt_alone) + cell_sum(both * doubt_both) + rounding
    side = OneSided(
        log_mass,
        mass,
        doubt_alone,
        residual=np.maximum(1.0 - total, 0.0) + residual_doubt,
        log_cap=columns.cap + doubt(columns.cap),
        unresolved=np.clip(1.0 - mass_both, 0.0, 1.0),
        is_complete=(n_known == columns.vocab_size) & (n_both == n_known),
    )
    return both, doubt_both, side


def cell_sum(cells: FloatArray) -> FloatArray:
    """Sum over the first axis, in one order for any number of tokens.

    numpy adds a single column pairwise and several in sequence; a token's value must not depend
    on how many others it was computed with.
    """
    n_tokens = cells.shape[1]
    if n_tokens == 1:
        cells = np.repeat(cells, 2, axis=1)
    total: FloatArray = np.add.reduce(cells, axis=0)
    return total[:n_tokens]


def _ids(ids: IntArray, side: str) -> NDArray[np.int64]:
    """Token ids as int64, checked: whole numbers of 32 bits, -1 for padding."""
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise InputError(f"{side} ids are {array.dtype}; expected whole numbers.")
    if array.size and not -1 <= int(array.min()) <= int(array.max()) < 2**31:
        raise InputError(
            f"{side} ids reach from {array.min()} to {array.max()}; expected 0 to {2**31 - 1}, or -1 to pad."
        )
    return array.astype(np.int64)


def _columns(topk: TopK, token_ids: IntArray | None, side: str) -> _Columns:
    ids, logprobs = _ids(topk.ids, side), topk.logprobs
    if ids.ndim != 2 or ids.shape != logprobs.shape:
        raise InputError(
            f"{side} ids have shape {ids.shape}, logprobs {logprobs.shape}; expected [tokens, k] twice."
        )
    unit = _unit(logprobs, side)
    listed = np.where(ids == PADDING, 0.0, logprobs.astype(np.float64))
    least = np.where(ids == PADDING, np.inf, listed).min(axis=1, initial=np.inf)
    cap = np.where(np.isposinf(least), 0.0, least)  # a list without entries caps nothing
    if topk.realised is not None and token_ids is not None:
        if not len(token_ids) == len(topk.realised) == len(ids):
            raise InputError(
                f"{side} has {len(ids)} lists, {len(topk.realised)} realised logprobs and "
                f"{len(token_ids)} token ids; expected as many of each."
            )
        unit = max(unit, _unit(topk.realised, side))
        realised_ids = _ids(token_ids, "realised")[:, None]
        is_listed = (ids == realised_ids).any(axis=1)
        ids = np.concatenate([ids, realised_ids], axis=1)
        listed = np.concatenate([listed, topk.realised[:, None]], axis=1)
        _check(ids, listed, side)
        ids[is_listed, -1] = PADDING
    else:
        _check(ids, listed, side)
    return _Columns(ids, listed, cap, unit, topk.vocab_size, side)


def _check(ids: NDArray[np.int64], logprobs: FloatArray, side: str) -> None:
    bad = ~(np.isfinite(logprobs) & (logprobs <= MAX_LOGPROB))
    if bad.any():
        token, column = np.argwhere(bad)[0]
        value = f"the logprob of id {ids[token, column]} is {logprobs[token, column]:g}"
        raise TokenError(side, int(token), f"{value}; expected a finite number of at most 0.")


def _unit(logprobs: LogprobArray, side: str) -> float:
    if logprobs.dtype not in UNITS:
        raise InputError(f"{side} logprobs are {logprobs.dtype}; expected float32 or float64.")
    return UNITS[logprobs.dtype]


def _matches(
    mine: NDArray[np.int64], theirs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, column here and column there of every id that is on both sides."""
    n_mine = mine.shape[1]
    keys = np.concatenate([mine, theirs], axis=1) << 32
    keys |= np.arange(keys.shape[1])
    keys.sort(axis=1)
    ids, columns = keys >> 32, keys & 0xFFFFFFFF
    rows, at = np.nonzero((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != PADDING))
    first, second = columns[rows, at], columns[rows, at + 1]
    twice = (second < n_mine) | (first >= n_mine)
    if twice.any():
        index = int(np.argmax(twice))
        row = int(rows[index])
        side = "teacher" if second[index] < n_mine else "student"
        raise TokenError(
            side, row, f"id {ids[row, at[index]]} is listed twice; expected every id at most once."
        )
    return rows, first, second - n_mine
