"""Sequences with their trunks: in which order an engine runs them, and the check that it may share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.scoring.engines.causality import MAX_MOVE, MAX_MOVE_16_BIT, MEAN_MOVE, MEAN_MOVE_16_BIT
from tokscore.scoring.engines.contract import OtherIds, SequenceScores, TokenSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Branches whose branch points lie so close run together, from the first of them on.
NEAR_TOKENS = 32
# With their trunks, branches that run together have so many times the tokens of a batch at most.
WITH_TRUNK = 8
# The check reaches beyond a window of attention of up to so many tokens.
MAX_PROBE_TOKENS = 96
PROBE_TOKENS = 24


class TreeBatch(NamedTuple):
    """Sequences that are run together behind what they share with one trunk.

    Attributes:
        sequences: They.
        n_shared: Tokens that are not run again.
    """

    sequences: list[TokenSequence]
    n_shared: int


class Trees:
    """The sequences of one window.

    Attributes:
        alone: Those without trunk and branches here.
        roots: Those with branches here, and no trunk here.
    """

    def __init__(self, window: Sequence[TokenSequence]) -> None:
        keys = {sequence.key for sequence in window}
        self._branches: dict[int, list[TokenSequence]] = defaultdict(list)
        tops = []
        for sequence in window:
            if sequence.trunk is not None and sequence.trunk in keys and sequence.n_shared:
                self._branches[sequence.trunk].append(sequence)
            else:
                tops.append(sequence)
        self.alone = [sequence for sequence in tops if not self.has_branches(sequence)]
        self.roots = [sequence for sequence in tops if self.has_branches(sequence)]

    def has_branches(self, sequence: TokenSequence) -> bool:
        """Whether another sequence here has it for a trunk."""
        return sequence.key in self._branches

    def batches(self, trunk: TokenSequence, max_tokens: int) -> Iterator[TreeBatch]:
        """The branches of one trunk in lists that run together.

        Args:
            trunk: It.
            max_tokens: Tokens of a list, padding included, beside the trunk; a single branch may have more.
        """
        batch: list[TokenSequence] = []
        start = width = 0
        for branch in sorted(self._branches.get(trunk.key, ()), key=lambda each: each.n_shared):
            length = len(branch.token_ids)
            n, longest = len(batch) + 1, max(width, length)
            is_full = n * (longest - start) > max_tokens or n * longest > WITH_TRUNK * max_tokens
            if batch and (is_full or branch.n_shared - start > NEAR_TOKENS):
                yield TreeBatch(batch, start)
                batch = []
            if not batch:
                start, longest = branch.n_shared, length
            batch.append(branch)
            width = longest
        if batch:
            yield TreeBatch(batch, start)


def probe_length(config: Any) -> int:
    """Tokens of a trunk that is longer than a short window of a model's attention.

    Args:
        config: transformers', of the text model.
    """
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and 2 * window <= MAX_PROBE_TOKENS:
        return max(PROBE_TOKENS, 2 * window)
    return PROBE_TOKENS


def make_tree(vocab_size: int, longest: int, n_tokens: int) -> list[TokenSequence] | None:
    """A trunk, two branches of it and one of a branch; None where the engine takes too few tokens.

    Args:
        vocab_size: Width of the logits.
        longest: Most tokens of a sequence.
        n_tokens: Of the trunk, where it takes so many.
    """
    n = min(n_tokens, longest)
    if n < 12 or vocab_size < 8:
        return None
    ids = np.random.default_rng(0).integers(0, vocab_size, n).astype(np.int32)

    def leaving(of: NDArray[np.int32], at: int, key: int) -> NDArray[np.int32]:
        other: NDArray[np.int32] = np.concatenate([of[:at], (of[at:] + key) % vocab_size])[: n - key]
        return other.astype(np.int32)

    first, third = n // 2, n - 4
    one, two = leaving(ids, first, 1), leaving(ids, first + 1, 2)
    three = leaving(one, third - 1, 3)

    def branch(key: int, token_ids: NDArray[np.int32], trunk: int, at: int, after: int = 0) -> TokenSequence:
        wanted = np.arange(len(token_ids) - 1) >= at
        others = None if not after else OtherIds(np.array([after - 1]), three[after : after + 1])
        return TokenSequence(key, token_ids, wanted, others, trunk, at, after)

    others = OtherIds(np.array([first - 1, first]), np.array([one[first], two[first + 1]], np.int32))
    return [
        TokenSequence(0, ids, None, others, None, 0, first + 1),
        branch(1, one, 0, first, third - 1),
        branch(2, two, 0, first + 1),
        branch(3, three, 1, third - 1),
    ]


def difference_of(
    shared: Mapping[int, SequenceScores], whole: Mapping[int, SequenceScores], dtype: str
) -> str | None:
    """How sequences come out otherwise where they share; None where rounding explains it.

    Args:
        shared: Scores by key, of sequences run with their trunks.
        whole: The same, each run whole.
        dtype: Of the model.
    """
    if shared.keys() != whole.keys():
        return "sequences are missing"
    moves = []
    for key, scores in whole.items():
        one, other = scores.logprobs.astype(np.float64), shared[key].logprobs.astype(np.float64)
        moves.append(np.abs(np.subtract(one, other, out=np.zeros_like(one), where=one != other)))
    move = np.concatenate(moves)
    limit, mean = MAX_MOVE.get(dtype, MAX_MOVE_16_BIT), MEAN_MOVE.get(dtype, MEAN_MOVE_16_BIT)
    if not (move.max() <= limit and move.mean() <= mean):
        return f"logprobs differ by up to {move.max():.3g} nats"
    return None
