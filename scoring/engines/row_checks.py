"""Numbers of a row of scores that no distribution has together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import ConversationError, EngineError

if TYPE_CHECKING:
    from tokscore.scoring.engines.contract import SequenceScores

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

# Two logprobs of one id may differ by this much in nats, and by this much of themselves: logits divided by a
# small temperature are large, and are rounded before anything is subtracted.
SAME_LOGPROB, SAME_LOGPROB_RELATIVE = np.float32(1e-3), np.float32(1e-5)
# Probabilities that should add up to at most 1 may do so to this much more.
MASS_TOLERANCE = 1e-3
LOWEST = np.finfo(np.float32).min
# Rows that are looked at together, so that what is made of them stays in the cache.
BLOCK_ROWS = 1_024
# Lists are sorted to find an id that is there twice, in one of so many rows; neighbours are compared in all.
SORTED_EVERY = 8


class Fault(NamedTuple):
    """A row that cannot be.

    Attributes:
        row: Of the scores.
        reason: What is wrong with it.
    """

    row: int
    reason: str


def find_fault(scores: SequenceScores, token_ids: Ints | None = None) -> Fault | None:
    """A row that cannot be; None where all can.

    Ties may be in any order, and what rounding in float32 explains is no fault.

    Args:
        scores: Of the right shapes, without NaN.
        token_ids: The realised tokens, int32 [rows]; without them it is not told whether they are listed.
    """
    for start in range(0, len(scores), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = _Block(
            scores.logprobs[rows],
            None if scores.ranks is None else scores.ranks[rows],
            scores.top_ids[rows],
            scores.top_logprobs[rows],
            None if token_ids is None else token_ids[rows],
        )
        for reason, is_wrong in _faults(block):
            if np.count_nonzero(is_wrong):
                row = int(is_wrong.nonzero()[0][0])
                return Fault(start + row, reason)
    return None


class _Block(NamedTuple):
    logprobs: Floats
    ranks: Ints | None
    top_ids: Ints
    top_logprobs: Floats
    token_ids: Ints | None


def _faults(block: _Block) -> Iterator[tuple[str, Bools]]:
    """Reasons, and where they hold: bool [rows] or [rows, places].

    They come one at a time, since the later ones take it that the earlier ones hold nowhere.
    """
    logprobs, ranks, top_ids, top_logprobs, token_ids = block
    top_k = top_ids.shape[1]
    if ranks is not None:
        yield "its rank is below 1", ranks < 1
        # The ids that a rank counts are as likely as the token, or likelier.
        mass = ranks * np.exp(logprobs)
        yield "so many ids as its rank says cannot be as likely", mass > 1 + MASS_TOLERANCE
    if not top_k:
        return
    yield "its list is not in descending order", top_logprobs[:, 1:] > top_logprobs[:, :-1]
    mass = np.exp(top_logprobs) @ np.ones(top_k, np.float32)
    yield "its list holds more than all of the mass", mass > 1 + MASS_TOLERANCE
    # An id that was picked twice has one logprob, so it is beside itself but for ties.
    yield "its list holds an id twice", top_ids[:, 1:] == top_ids[:, :-1]
    ordered = np.sort(top_ids[::SORTED_EVERY], axis=1)
    is_twice = ordered[:, 1:] == ordered[:, :-1]
    yield "its list holds an id twice", np.repeat(is_twice, SORTED_EVERY, 0) if is_twice.any() else is_twice

    tolerance: Floats = SAME_LOGPROB - SAME_LOGPROB_RELATIVE * np.maximum(logprobs, LOWEST)
    is_likely = logprobs > top_logprobs[:, -1] + tolerance
    if ranks is not None:
        is_inside = ranks <= top_k
        # Of the ids that its rank counts, which begin the list, the token is the least likely.
        at = np.minimum(ranks, top_k) - 1
        there = np.where(is_inside, top_logprobs[np.arange(len(ranks)), at], logprobs)
        yield "its list has another logprob at its rank", _differ(logprobs, there, tolerance)
        yield "its rank is beyond its list, but it is likelier than an id there", is_likely > is_inside
    if token_ids is None:
        return
    places = (top_ids == token_ids[:, None]).reshape(-1).nonzero()[0]
    listed = places // top_k
    if ranks is None:
        is_likely[listed] = False
        yield "its list lacks the token, which is likelier than an id there", is_likely
    else:
        is_missing = is_inside.copy()
        is_missing[listed] = False
        yield "its list lacks the token, against its rank", is_missing
    there = logprobs.copy()
    there[listed] = top_logprobs.reshape(-1)[places]
    yield "its list has the token at another logprob", _differ(logprobs, there, tolerance)


def _differ(one: Floats, other: Floats, tolerance: Floats) -> Bools:
    """Where two logprobs are apart; -inf is equal to itself alone."""
    is_apart: Bools = one != other
    if np.count_nonzero(is_apart):
        is_apart[is_apart] = np.abs(one[is_apart] - other[is_apart]) > tolerance[is_apart]
    return is_apart


def _find_given_fault(scores: SequenceScores, at_ids: Ints, at_logprobs: Floats) -> Fault | None:
    """A row whose given ids cannot have these logprobs beside its list."""
    if not scores.top_ids.shape[1] or not at_ids.size:
        return None
    for start in range(0, len(scores), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        ids, logprobs = at_ids[rows], at_logprobs[rows]
        top_ids, top_logprobs = scores.top_ids[rows], scores.top_logprobs[rows]
        is_there = ids >= 0
        tolerance = SAME_LOGPROB - SAME_LOGPROB_RELATIVE * np.maximum(top_logprobs[:, -1:], LOWEST)
        is_listed = np.zeros(ids.shape, np.bool_)
        is_apart = np.zeros(ids.shape, np.bool_)
        for place in range(top_ids.shape[1]):
            is_same = (ids == top_ids[:, place : place + 1]) & is_there
            listed = np.broadcast_to(top_logprobs[:, place : place + 1], ids.shape)[is_same]
            is_listed |= is_same
            is_apart[is_same] = _differ(
                logprobs[is_same], listed, SAME_LOGPROB - SAME_LOGPROB_RELATIVE * np.maximum(listed, LOWEST)
            )
        too_likely = is_there & ~is_listed & (logprobs > top_logprobs[:, -1:] + tolerance)
        for reason, is_wrong in (
            ("a given id has another logprob than in its list", is_apart),
            ("its list lacks a given id that is likelier than an id there", too_likely),
        ):
            if is_wrong.any():
                return Fault(start + int(is_wrong.nonzero()[0][0]), reason)
    return None


# A logprob may exceed 0 by this much: the rounding of a float32 log-softmax.
POSITIVE_LOGPROB_TOLERANCE = 1e-5


def check_scores(
    scores: SequenceScores,
    n_rows: int,
    top_k: int,
    conversation_id: str,
    token_ids: NDArray[np.int32] | None = None,
    at_ids: NDArray[np.int32] | None = None,
    *,
    dtype: str | None = None,
) -> None:
    """Check what an engine returned for one conversation. Nothing is padded, cut or clamped.

    Args:
        scores: As the engine returned them.
        n_rows: Tokens that were to be scored.
        top_k: Alternatives asked for at every position.
        conversation_id: For the message.
        token_ids: The tokens that were to be scored, int32 [n_rows]; without them it is not checked that
            they are among the most likely ids where their rank says so.
        at_ids: The ids that were given for each row, int32 [n_rows, width], -1 to pad.
        dtype: That the engine computes in, for the hint; None where nobody can choose it.

    Raises:
        EngineError: Rows, alternatives or logprobs of given ids are missing or too many; the engine cannot be
            trusted.
        ConversationError: NaN, a logprob above zero, or numbers that no distribution has together. -inf is
            a valid logprob.
    """
    shapes = {
        "logprobs": (scores.logprobs.shape, (n_rows,)),
        "top_ids": (scores.top_ids.shape, (n_rows, top_k)),
        "top_logprobs": (scores.top_logprobs.shape, (n_rows, top_k)),
    }
    for name, column in (("ranks", scores.ranks), ("entropy", scores.entropy)):
        if column is not None:
            shapes[name] = (column.shape, (n_rows,))
    if at_ids is not None:
        for name, column in (("at_ids", scores.at_ids), ("at_logprobs", scores.at_logprobs)):
            shapes[name] = (() if column is None else column.shape, at_ids.shape)
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise EngineError(
                f"conversation {conversation_id}: the engine returned {name} of shape {found} "
                f"for {n_rows} tokens to score; expected {expected}. Nothing was written for this part."
            )
    if at_ids is not None and not np.array_equal(scores.at_ids, at_ids):  # type: ignore[arg-type]
        raise EngineError(
            f"conversation {conversation_id}: the engine returned logprobs at other ids than were given. "
            "Nothing was written for this part."
        )
    checked = [("logprobs", scores.logprobs), ("top_logprobs", scores.top_logprobs)]
    if at_ids is not None and scores.at_logprobs is not None:
        checked.append(("at_logprobs", scores.at_logprobs))
    for name, values in checked:
        n_nan = int(np.isnan(values).sum())
        if n_nan:
            precise = "`dtype='float32'` or " if dtype in ("bfloat16", "float16") else ""
            raise ConversationError(
                f"conversation {conversation_id} has {n_nan} NaN among its {values.size} {name}.",
                hint=f"Look at the weights, or try {precise}another `engine`.",
            )
        if values.size and float(values.max()) > POSITIVE_LOGPROB_TOLERANCE:
            raise ConversationError(
                f"conversation {conversation_id} has {float(values.max()):.6g} among its {name}; "
                "expected at most 0."
            )
    if scores.entropy is not None and bool(np.isnan(scores.entropy).any()):
        raise ConversationError(f"conversation {conversation_id} has NaN in its entropy.")
    fault = find_fault(scores, token_ids)
    if fault is None and at_ids is not None and scores.at_ids is not None and scores.at_logprobs is not None:
        fault = _find_given_fault(scores, scores.at_ids, scores.at_logprobs)
    if fault is not None:
        raise ConversationError(
            f"conversation {conversation_id}, row {fault.row} of {n_rows}: {fault.reason}.",
            hint="No distribution has these numbers together. Try another `engine_path` or `engine`.",
        )
