"""The engine contract: token ids in, arrays per sequence out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tokscore.rendering.errors import ConversationError, EngineError
from tokscore.scoring.row_checks import find_fault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.manifest import ModelIdentity, Setting

# Engine name -> "module:class". The class is called as `Engine(spec, longest)`, see `load.py`.
ENGINES: Mapping[str, str] = {
    "vllm": "tokscore.scoring.engines.vllm:VllmEngine",
    "transformers": "tokscore.scoring.engines.transformers:TransformersEngine",
}

# A logprob may exceed 0 by this much: the rounding of a float32 log-softmax.
POSITIVE_LOGPROB_TOLERANCE = 1e-5


class TokenSequence(NamedTuple):
    """One sequence to score.

    Attributes:
        key: Chosen by the caller; comes back with the scores.
        token_ids: int32 [n], at least one.
        wanted: bool [n-1], whether token t+1 is to be scored; None where all are. Engines may save the
            work of the others.
    """

    key: int
    token_ids: NDArray[np.int32]
    wanted: NDArray[np.bool_] | None = None

    @property
    def n_rows(self) -> int:
        """Rows that its scores must have."""
        if self.wanted is None:
            return len(self.token_ids) - 1
        return int(np.count_nonzero(self.wanted))

    def targets(self) -> NDArray[np.int32]:
        """The tokens to be scored, int32 [n_rows]."""
        following = self.token_ids[1:]
        return following if self.wanted is None else following[self.wanted]


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """What a model says about a sequence: a row per wanted token, in order, given all tokens before it.

    Where every token of n is wanted, row t is about token t+1 given tokens 0 to t.

    Attributes:
        logprobs: float32 [rows], natural log.
        ranks: int32 [rows], number of ids with a logit at least as high as the token's; 1 = most likely.
        top_ids: int32 [rows, k], the most likely ids in descending order; the token is among them
            only where it is one of them.
        top_logprobs: float32 [rows, k], their logprobs.
        entropy: float32 [rows], nats; None where the engine cannot tell.
    """

    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    entropy: NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.logprobs)


class Engine(Protocol):
    """A loaded model that scores sequences.

    Attributes:
        identity: What the manifest says of it.
        max_length: Most tokens one sequence may have.
        vocab_size: Width of the logits.
        details: How it scores here, for the user and the manifest: names and values that change neither
            what is asked for nor, beyond the noise floor, the numbers.
    """

    @property
    def identity(self) -> ModelIdentity: ...  # noqa: D102

    @property
    def max_length(self) -> int: ...  # noqa: D102

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def details(self) -> Mapping[str, Setting]: ...  # noqa: D102

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence, in any order.

        The sequences are drawn a window at a time, so that memory does not grow with their number.

        Raises:
            EngineError: The engine failed; no sequence is to blame.
        """
        ...

    def close(self) -> None:
        """Free the model."""
        ...


def windows(sequences: Iterable[TokenSequence], max_tokens: int) -> Iterator[list[TokenSequence]]:
    """The sequences in order, in lists of at most `max_tokens` tokens (or a single longer sequence)."""
    window: list[TokenSequence] = []
    n_tokens = 0
    for sequence in sequences:
        if window and n_tokens + len(sequence.token_ids) > max_tokens:
            yield window
            window, n_tokens = [], 0
        window.append(sequence)
        n_tokens += len(sequence.token_ids)
    if window:
        yield window


def last_line(error: Exception) -> str:
    """The last line of its message, where libraries say what went wrong; its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def check_scores(
    scores: SequenceScores,
    n_rows: int,
    top_k: int,
    conversation_id: str,
    token_ids: NDArray[np.int32] | None = None,
) -> None:
    """Check what an engine returned for one conversation. Nothing is padded, cut or clamped.

    Args:
        scores: As the engine returned them.
        n_rows: Tokens that were to be scored.
        top_k: Alternatives asked for at every position.
        conversation_id: For the message.
        token_ids: The tokens that were to be scored, int32 [n_rows]; without them it is not checked that
            they are among the most likely ids where their rank says so.

    Raises:
        EngineError: Rows or alternatives are missing or too many; the engine cannot be trusted.
        ConversationError: NaN, a logprob above zero, or numbers that no distribution has together. -inf is
            a valid logprob.
    """
    shapes = {
        "logprobs": (scores.logprobs.shape, (n_rows,)),
        "ranks": (scores.ranks.shape, (n_rows,)),
        "top_ids": (scores.top_ids.shape, (n_rows, top_k)),
        "top_logprobs": (scores.top_logprobs.shape, (n_rows, top_k)),
    }
    if scores.entropy is not None:
        shapes["entropy"] = (scores.entropy.shape, (n_rows,))
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise EngineError(
                f"conversation {conversation_id}: the engine returned {name} of shape {found} "
                f"for {n_rows} tokens to score; expected {expected}. Nothing was written for this part."
            )
    for name, values in (("logprobs", scores.logprobs), ("top_logprobs", scores.top_logprobs)):
        n_nan = int(np.isnan(values).sum())
        if n_nan:
            raise ConversationError(
                f"conversation {conversation_id} has {n_nan} NaN among its {values.size} {name}.",
                hint="Look at the weights, or try --dtype float32 or another engine.",
            )
        if values.size and float(values.max()) > POSITIVE_LOGPROB_TOLERANCE:
            raise ConversationError(
                f"conversation {conversation_id} has {float(values.max()):.6g} among its {name}; "
                "expected at most 0."
            )
    if scores.entropy is not None and bool(np.isnan(scores.entropy).any()):
        raise ConversationError(f"conversation {conversation_id} has NaN in its entropy.")
    fault = find_fault(scores, token_ids)
    if fault is not None:
        raise ConversationError(
            f"conversation {conversation_id}, row {fault.row} of {n_rows}: {fault.reason}.",
            hint="No distribution has these numbers together. Try another --engine-path or --engine.",
        )
