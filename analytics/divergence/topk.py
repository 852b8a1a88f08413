"""Top-k lists of two models for the same tokens, and what can be wrong with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import InputError

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
SIDES = ("teacher", "student")


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
    """Scores of one model for each token.

    Attributes:
        ids: The most likely ids, shape [tokens, k], each at most once a row; -1 where a list is shorter.
        logprobs: Their logprobs, float32 or float64, same shape, in any order.
        realised: Logprob of the token that is there, shape [tokens], or None. Needs `token_ids`.
        vocab_size: Number of ids the model gives a probability to. It certifies that nothing is
            left out, where the lists hold all of them.
        at_ids: Further ids whose logprobs are known, such as those of the other model's list, shape
            [tokens, n], -1 where there are fewer; None where there are none.
        at_logprobs: Theirs, same shape; -inf for an id that the model lacks.
    """

    ids: IntArray
    logprobs: LogprobArray
    realised: LogprobArray | None = None
    vocab_size: int | None = None
    at_ids: IntArray | None = None
    at_logprobs: LogprobArray | None = None

    def rows(self, start: int, stop: int) -> TopK:
        """The tokens [start, stop)."""
        rows = slice(start, stop)
        return TopK(
            self.ids[rows],
            self.logprobs[rows],
            None if self.realised is None else self.realised[rows],
            self.vocab_size,
            None if self.at_ids is None else self.at_ids[rows],
            None if self.at_logprobs is None else self.at_logprobs[rows],
        )


def lists_of(topk: TopK, side: str, token_ids: NDArray[np.int32] | None) -> Lists:
    """The lists as the compiled functions take them.

    Args:
        topk: Of one model.
        side: "teacher" or "student", for messages.
        token_ids: Checked; None where `topk.realised` is not to count.

    Raises:
        InputError: Shapes or dtypes do not fit.
    """
    ids = checked_ids(topk.ids, side)
    if ids.ndim != 2 or ids.shape != topk.logprobs.shape:
        raise InputError(
            f"{side} ids have shape {ids.shape}, logprobs {topk.logprobs.shape}; expected [tokens, k] twice."
        )
    unit, realised = unit_of(topk.logprobs, side), np.empty(0)
    if topk.realised is not None and token_ids is not None:
        if not len(token_ids) == len(topk.realised) == len(ids):
            raise InputError(
                f"{side} has {len(ids)} lists, {len(topk.realised)} realised logprobs and "
                f"{len(token_ids)} token ids; expected as many of each."
            )
        unit = max(unit, unit_of(topk.realised, side))
        realised = np.ascontiguousarray(topk.realised, np.float64)
    n_tokens, width = ids.shape
    given = NOTHING_GIVEN
    if topk.at_ids is not None and topk.at_logprobs is not None:
        at_ids = checked_ids(topk.at_ids, f"{side} given")
        if at_ids.ndim != 2 or at_ids.shape != topk.at_logprobs.shape or len(at_ids) != n_tokens:
            raise InputError(
                f"{side} given ids have shape {at_ids.shape}, logprobs {topk.at_logprobs.shape}; expected "
                f"[{n_tokens}, n] twice."
            )
        unit = max(unit, unit_of(topk.at_logprobs, side))
        given = given_lists(
            at_ids.ravel(),
            np.asarray(topk.at_logprobs, np.float64).ravel(),
            np.arange(n_tokens, dtype=np.int64) * at_ids.shape[1],
            np.full(n_tokens, at_ids.shape[1], np.int64),
        )
    elif topk.at_ids is not None or topk.at_logprobs is not None:
        raise InputError(f"{side} has only one of `at_ids` and `at_logprobs`; expected both or none.")
    return Lists(
        ids.ravel(),
        np.ascontiguousarray(topk.logprobs, np.float64).ravel(),
        np.arange(n_tokens, dtype=np.int64) * width,
        np.full(n_tokens, width, np.int64),
        realised,
        ULPS * unit,
        -1 if topk.vocab_size is None else int(topk.vocab_size),
        *given,
    )


def checked_ids(ids: IntArray, side: str) -> NDArray[np.int32]:
    """Token ids as int32: whole numbers, -1 for padding.

    Raises:
        InputError: They are none.
    """
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise InputError(f"{side} ids are {array.dtype}; expected whole numbers.")
    if array.size and not -1 <= int(array.min()) <= int(array.max()) < 2**31:
        raise InputError(
            f"{side} ids reach from {array.min()} to {array.max()}; expected 0 to {2**31 - 1}, or -1 to pad."
        )
    return np.ascontiguousarray(array, np.int32)


def unit_of(logprobs: NDArray[Any], side: str) -> float:
    """Half the spacing at 1 of the dtype of logprobs; whole numbers such as 0 and -800 count as float64.

    Raises:
        InputError: They are of another dtype.
    """
    dtype = np.dtype(np.float64) if logprobs.dtype.kind in "iu" else logprobs.dtype
    if dtype not in UNITS:
        raise InputError(f"{side} logprobs are {dtype}; expected float32 or float64.")
    return UNITS[dtype]


class Fault(NamedTuple):
    """A token whose logprobs cannot be used.

    Attributes:
        side: Whose lists it is in.
        reason: What was found and what was expected.
    """

    side: str
    reason: str


def fault_of(row: FloatArray) -> Fault:
    """The fault in a row of numbers from `kernel.limits_of_tokens`."""
    return Fault(SIDES[int(row[1])], _reason(row))


def _reason(fault: FloatArray) -> str:
    kind, _, token_id, value = fault.tolist()
    if kind == FAULT_LOGPROB:
        return f"the logprob of id {token_id:.0f} is {value:g}; expected at most 0, or -inf."
    if kind == FAULT_SUM:
        return (
            f"the listed probabilities sum to {value:.6g}; expected at most 1, or 1 where no other id "
            "has any. Were they rounded to half precision?"
        )
    if kind == FAULT_UNDEFINED:
        return (
            f"both models give id {token_id:.0f} the logprob -inf, which leaves its log-ratio undefined; "
            "expected a token that one of them allows."
        )
    return f"id {token_id:.0f} is listed twice; expected every id at most once."


FAULT_LOGPROB, FAULT_TWICE, FAULT_SUM, FAULT_UNDEFINED, FAULT_RANGE = 1.0, 2.0, 3.0, 4.0, 5.0


class Lists(NamedTuple):
    """The top-k lists of one model, token after token.

    Attributes:
        ids: All ids, int32 of shape [entries]; negative ones are left out.
        logprobs: Theirs, float64.
        starts: First entry of each token, int64 of shape [tokens].
        lengths: Entries of each token, int64.
        realised: Logprob of the token that is there, float64 of shape [tokens], or [0] where it is not given.
        unit: Rounding of a stored logprob x is within unit * max(1, |x|).
        vocab_size: Number of ids of the model, -1 where it is not known.
        given_ids: Further ids whose logprobs are known, int32; they may be in the list as well.
        given_logprobs: Theirs, float64.
        given_starts: First of them of each token, int64 of shape [tokens], or [0] where none are given.
        given_lengths: How many each token has, int64.
    """

    ids: NDArray[np.int32]
    logprobs: FloatArray
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    realised: FloatArray
    unit: float
    vocab_size: int
    given_ids: NDArray[np.int32]
    given_logprobs: FloatArray
    given_starts: NDArray[np.int64]
    given_lengths: NDArray[np.int64]

    def rows(self, rows: slice) -> Lists:
        """The lists of some of the tokens."""
        return self._replace(
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            realised=self.realised[rows],
            given_starts=self.given_starts[rows],
            given_lengths=self.given_lengths[rows],
        )


# The last fields of `Lists`.
Given = tuple[NDArray[np.int32], FloatArray, NDArray[np.int64], NDArray[np.int64]]


def given_lists(
    ids: NDArray[np.int32], logprobs: FloatArray, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Given:
    """Given ids as `Lists` has them: copies, so that compiled code sees arrays of one kind alone."""
    return (
        np.array(ids, np.int32, order="C"),
        np.array(logprobs, np.float64, order="C"),
        np.array(starts, np.int64, order="C"),
        np.array(lengths, np.int64, order="C"),
    )


_NOWHERE = np.empty(0, np.int64)
NOTHING_GIVEN = given_lists(np.empty(0, np.int32), np.empty(0), _NOWHERE, _NOWHERE)
