"""Which sequences a model runs together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tokscore.scoring.engines.contract import TokenSequence, windows

# Sequences are sorted by length inside windows of this many batches.
WINDOW_BATCHES = 16


class Batching(NamedTuple):
    """The rule of one model.

    Attributes:
        max_tokens: Tokens of one forward pass, padding included; a longer sequence is a batch of its own.
        longest_together: The longest sequence that others may stand beside. A longer one would have them take
            its positions, or the model runs one sequence at a time.
    """

    max_tokens: int
    longest_together: int

    def within(self, other: Batching) -> Batching:
        """The rule whose batches follow both rules."""
        return Batching(*map(min, self, other))

    def batches(self, sequences: Iterable[TokenSequence]) -> Iterator[list[TokenSequence]]:
        """The sequences in lists that are run together, the longest of each window first."""
        for window in windows(sequences, WINDOW_BATCHES * self.max_tokens):
            # Longest first: what does not fit in memory fails at once.
            waiting = sorted(window, key=lambda sequence: -len(sequence.token_ids))
            while waiting:
                longest = len(waiting[0].token_ids)
                n = max(1, self.max_tokens // longest) if longest <= self.longest_together else 1
                yield waiting[:n]
                del waiting[:n]
