"""The engine contract: token ids in, arrays per sequence out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tokscore.dataset.errors import foreign

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import ModelIdentity, Setting


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
    """Scores of a sequence: a row per wanted token, in order, given all tokens before it.

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
    return foreign(lines[-1].strip()) if lines else type(error).__name__
