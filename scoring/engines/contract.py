"""The engine contract: token ids in, arrays per sequence out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tokscore.dataset.errors import foreign
from tokscore.scoring.given.ids import values_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import ModelIdentity, Setting


# What pydantic says of a value behind the reason against it.
_GIVEN = re.compile(r" \[type=\w+, input_value=.*\]$")


class OtherIds(NamedTuple):
    """Ids to be scored beside a sequence's own tokens: how its branches go on.

    Attributes:
        positions: int64 [ids], ascending, each with a token behind it: the id is scored given the tokens up
            to and including that position.
        token_ids: int32 [ids].
    """

    positions: NDArray[np.int64]
    token_ids: NDArray[np.int32]


class TokenSequence(NamedTuple):
    """One sequence to score.

    Attributes:
        key: Chosen by the caller; comes back with the scores.
        token_ids: int32 [n], at least one.
        wanted: bool [n-1], whether token t+1 is to be scored; None where all are. Engines may save the
            work of the others.
        others: Other ids to be scored at positions of this sequence.
        trunk: Key of an earlier sequence that begins with the same `n_shared` tokens; an engine may keep what
            it computed for them. No row lies before position `n_shared`.
        n_shared: Tokens in common with the trunk.
        n_for_branches: Tokens at the beginning that later sequences share.
        at_ids: int32 [n-1, width], ids whose logprobs are asked for in every row about position t, in any
            order, each once a row; -1 where there are fewer. None where there are none.
    """

    key: int
    token_ids: NDArray[np.int32]
    wanted: NDArray[np.bool_] | None = None
    others: OtherIds | None = None
    trunk: int | None = None
    n_shared: int = 0
    n_for_branches: int = 0
    at_ids: NDArray[np.int32] | None = None

    @property
    def n_rows(self) -> int:
        """Rows that its scores must have."""
        n_others = 0 if self.others is None else len(self.others.positions)
        if self.wanted is None:
            return len(self.token_ids) - 1 + n_others
        return int(np.count_nonzero(self.wanted)) + n_others

    def positions(self) -> NDArray[np.int64]:
        """The position whose logits each row is about, int64 [n_rows], ascending."""
        n = len(self.token_ids) - 1
        own = np.arange(n) if self.wanted is None else np.flatnonzero(self.wanted)
        if self.others is None:
            return own
        return np.sort(np.concatenate([own, self.others.positions]))

    def targets(self) -> NDArray[np.int32]:
        """The ids to be scored, int32 [n_rows]: at each position its own token, then the others."""
        following = self.token_ids[1:]
        own = following if self.wanted is None else following[self.wanted]
        if self.others is None:
            return own
        places = np.arange(len(following)) if self.wanted is None else np.flatnonzero(self.wanted)
        order = np.argsort(np.concatenate([places, self.others.positions]), kind="stable")
        targets: NDArray[np.int32] = np.concatenate([own, self.others.token_ids])[order]
        return targets

    def at_rows(self) -> NDArray[np.int32] | None:
        """The given ids of each row that its scores must have, int32 [n_rows, width]."""
        if self.at_ids is None or (self.wanted is None and self.others is None):
            return self.at_ids
        return self.at_ids[self.positions()]


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """Scores of a sequence: a row per wanted token and other id, in order, given all tokens before it.

    Where every token of n is wanted, row t is about token t+1 given tokens 0 to t.

    Attributes:
        logprobs: float32 [rows], natural log.
        ranks: int32 [rows], number of ids with a logit at least as high as the token's; 1 = most likely. None
            where the engine cannot tell.
        top_ids: int32 [rows, k], the most likely ids in descending order; the token is among them
            only where it is one of them.
        top_logprobs: float32 [rows, k], their logprobs.
        entropy: float32 [rows], nats; None where the engine cannot tell.
        at_ids: int32 [rows, width], the given ids as asked for, -1 to pad; None where none were given.
        at_logprobs: float32 [rows, width], their logprobs: -inf for ids that the model lacks, and to pad.
    """

    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32] | None
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    entropy: NDArray[np.float32] | None
    at_ids: NDArray[np.int32] | None = None
    at_logprobs: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.logprobs)

    def at(self, at_ids: NDArray[np.int32] | None) -> SequenceScores:
        """The same rows at some of their given ids, int32 [rows, width], or at none."""
        if at_ids is None:
            return replace(self, at_ids=None, at_logprobs=None)
        if not at_ids.shape[1]:
            return replace(self, at_ids=at_ids, at_logprobs=np.empty(at_ids.shape, np.float32))
        if self.at_ids is None or self.at_logprobs is None:
            raise ValueError("they were made at no ids")
        at_logprobs = values_at(at_ids, self.at_ids, self.at_logprobs)
        return replace(self, at_ids=at_ids, at_logprobs=at_logprobs)


class Engine(Protocol):
    """A loaded model that scores sequences.

    Attributes:
        identity: What the manifest says of it.
        max_length: Most tokens one sequence may have.
        vocab_size: Width of the logits.
        details: How it scores here, for the user and the manifest: names and values that change neither
            what is asked for nor, beyond the noise floor, the numbers.
        shares: Whether it computes what sequences have in common with their trunk once.
        n_computed: Tokens that its model has computed so far for sequences, those of its own checks included.
        n_rescored: Sequences that were scored again since what they share was not there as planned.
    """

    @property
    def identity(self) -> ModelIdentity: ...  # noqa: D102

    @property
    def max_length(self) -> int: ...  # noqa: D102

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def details(self) -> Mapping[str, Setting]: ...  # noqa: D102

    @property
    def shares(self) -> bool: ...  # noqa: D102

    @property
    def n_computed(self) -> int: ...  # noqa: D102

    @property
    def n_rescored(self) -> int: ...  # noqa: D102

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence, in any order.

        The sequences are drawn a window at a time, so that memory does not grow with their number. A sequence
        with a trunk may come without it; it is a sequence like others then.

        Raises:
            EngineError: The engine failed; no sequence is to blame.
        """
        ...

    def close(self) -> None:
        """Free the model."""
        ...


def windows(sequences: Iterable[TokenSequence], max_tokens: int) -> Iterator[list[TokenSequence]]:
    """The sequences in order, in lists of about `max_tokens` tokens.

    A list is longer where a single sequence is, or a trunk with its branches, which stay together.
    """
    window: list[TokenSequence] = []
    n_tokens = 0
    for sequence in sequences:
        n_new = len(sequence.token_ids) - sequence.n_shared
        if window and n_tokens + n_new > max_tokens and sequence.trunk is None:
            yield window
            window, n_tokens = [], 0
        window.append(sequence)
        n_tokens += n_new
    if window:
        yield window


def last_line(error: Exception) -> str:
    """The last line of its message, where libraries say what went wrong; its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic ends with a link, and the line before it with what was given.
    lines = [_GIVEN.sub("", line) for line in lines if not line.startswith("For further information visit")]
    return foreign(lines[-1]) if lines else type(error).__name__
