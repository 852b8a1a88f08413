"""The check of a server at start: known sequences, so that what it does to logprobs is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import ConversationError, EngineError
from tokscore.scoring.engines.causality import MAX_MOVE_16_BIT, MEAN_MOVE_16_BIT
from tokscore.scoring.engines.contract import SequenceScores
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, Question, Rows
from tokscore.scoring.engines.server.identity import fingerprint

Ids = NDArray[np.int32]
# Rows of all questions, which are asked at the same time.
Ask = Callable[[Sequence[Question]], Sequence[Rows]]

PROBE_TOKENS = 32
# Different ids of a sequence, few so that a penalty for repetition has something to do.
N_DIFFERENT = 12
COMPANY = 4
# Other tokens at the ends of these shares of the sequence.
BRANCHES = (0.25, 0.5, 0.75)
OTHER_TEMPERATURE, OTHER_PENALTY = 0.25, 2.0
# Logprobs of a float32 are no multiples of it.
COARSE = 1e-4
# Bits that a float16 lacks beside a float32, which bfloat16 lacks too.
MISSING_BITS = 13
FEWEST_VALUES = 8


class Found(NamedTuple):
    """What a check found of a server that passed.

    Attributes:
        fingerprint: Logprobs of the sequence, as text.
        noise: What they moved by at most when asked again, alone or in company, in nats.
    """

    fingerprint: str
    noise: float


def probe(vocab_size: int, longest: int) -> Ids:
    """The sequence that every server is asked for, int32 [tokens]."""
    generator = np.random.default_rng(0)
    some = generator.integers(0, vocab_size, N_DIFFERENT)
    return some[generator.integers(0, N_DIFFERENT, min(PROBE_TOKENS, longest))].astype(np.int32)


def check_server(ask: Ask, url: str, vocab_size: int, longest: int, top_k: int) -> Found:
    """Ask for known sequences in ways that must not change the answer.

    Args:
        ask: Asks the server.
        url: For messages.
        vocab_size: Ids that the model has.
        longest: Most tokens of a prompt.
        top_k: Most likely ids that will be asked for.

    Raises:
        EngineError: What the server does that makes its logprobs wrong.
    """
    try:
        return _check(ask, vocab_size, longest, top_k)
    except (AnswerError, ConversationError) as error:
        raise EngineError(f"{url} cannot be used: {error}.\nNothing was scored.") from error


def _check(ask: Ask, vocab_size: int, longest: int, top_k: int) -> Found:
    ids = probe(vocab_size, longest)
    question = Question(ids, top_k)
    first, again = (_asked(ask, [question])[0] for _ in range(2))
    others = [question._replace(token_ids=np.roll(ids, 1 + i)) for i in range(COMPANY)]
    beside = _asked(ask, [question, *others])[0]
    _check_rounding(first.logprobs)
    for what, other in (("asked again", again), ("asked for beside others", beside)):
        _check_equal(first.logprobs, other.logprobs, f"its logprobs move by {{:.3g}} nats when {what}")
    _check_suffixes(ask, question, first, vocab_size)
    [hot] = _asked(ask, [question._replace(temperature=OTHER_TEMPERATURE)])
    _check_equal(
        first.logprobs,
        hot.logprobs,
        "it applies the temperature to the logprobs of prompts, which move by {:.3g} nats with it",
    )
    [punished] = _asked(ask, [question._replace(penalty=OTHER_PENALTY)])
    _check_equal(
        first.logprobs,
        punished.logprobs,
        "it applies penalties to the logprobs of prompts, which move by {:.3g} nats with one",
    )
    noise = max(_move(first.logprobs, other.logprobs).max(initial=0) for other in (again, beside))
    return Found(fingerprint(first.logprobs), float(noise))


def _asked(ask: Ask, questions: Sequence[Question]) -> Sequence[Rows]:
    """Rows that can be."""
    found = ask(questions)
    for question, rows in zip(questions, found, strict=True):
        scores = SequenceScores(*rows, entropy=None)
        check_scores(scores, len(question.targets), question.top_k, "self-test", question.targets)
    return found


def _check_suffixes(ask: Ask, question: Question, first: Rows, vocab_size: int) -> None:
    """Change tokens at the end; what stands before must keep its rows, and the new token get its own."""
    ids = question.token_ids
    places = sorted({max(1, int(share * len(ids))) for share in BRANCHES})
    for place in (place for place in places if place < len(ids)):
        row = place - 1
        # The likeliest id there, whose logprob is known from the list; any other where there are no lists.
        likeliest = int(first.top_ids[row, 0]) if question.top_k else int(ids[place] + 1) % vocab_size
        branch = np.concatenate([ids[:place], [likeliest], np.roll(ids, 5)[place + 1 :]]).astype(np.int32)
        [other] = _asked(ask, [question._replace(token_ids=branch)])
        _check_equal(
            first.logprobs[:row],
            other.logprobs[:row],
            "its logprobs of a beginning move by {:.3g} nats with what follows",
        )
        if question.top_k:
            _check_equal(
                first.top_logprobs[row, :1],
                other.logprobs[row : row + 1],
                "it returns stale rows: behind a beginning that it saw before, the logprob of a token is off "
                "by {:.3g} nats",
            )


def _check_equal(one: NDArray[np.float32], other: NDArray[np.float32], text: str) -> None:
    move = _move(one, other)
    if move.max(initial=0) > MAX_MOVE_16_BIT or (len(move) > 1 and move.mean() > MEAN_MOVE_16_BIT):
        raise AnswerError(text.format(move.max()))


def _move(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = one.astype(np.float64), other.astype(np.float64)
    moves: NDArray[np.float64] = np.abs(np.subtract(*wide, out=np.zeros(len(one)), where=one != other))
    return moves


def _check_rounding(logprobs: NDArray[np.float32]) -> None:
    values = logprobs[np.isfinite(logprobs) & (logprobs != 0)]
    if len(values) < FEWEST_VALUES:
        return
    steps = values.astype(np.float64) / COARSE
    if (np.abs(steps - np.round(steps)) < 1e-2).all():
        raise AnswerError("it rounds logprobs: all are multiples of 0.0001")
    if not (values.view(np.uint32) & (2**MISSING_BITS - 1)).any():
        raise AnswerError("it rounds logprobs: all are of 16 bits")
