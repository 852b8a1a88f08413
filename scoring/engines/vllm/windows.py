"""The order in which sequences go to vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tokscore.scoring.engines.contract import TokenSequence


class Windows:
    """Sequences in windows of a number of tokens, the longest of each first; the next window fills slowly."""

    def __init__(self, sequences: Iterable[TokenSequence], max_tokens: int) -> None:
        self._sequences = iter(sequences)
        self._max_tokens = max_tokens
        self._current: deque[TokenSequence] = deque()
        self._next: list[TokenSequence] = []
        self._n_next = 0
        self._is_exhausted = False

    def take(self) -> TokenSequence | None:
        """The next sequence; None where there is none left."""
        if not self._current:
            self.look_ahead(self._max_tokens)
            self._current = deque(_longest_first(self._next))
            self._next, self._n_next = [], 0
        return self._current.popleft() if self._current else None

    def look_ahead(self, n_tokens: int) -> None:
        """Draw sequences of about `n_tokens` for the window after this one, as far as it has room."""
        stop = min(self._n_next + n_tokens, self._max_tokens)
        while self._n_next < stop and not self._is_exhausted:
            sequence = next(self._sequences, None)
            if sequence is None:
                self._is_exhausted = True
                return
            self._next.append(sequence)
            self._n_next += len(sequence.token_ids)


def _longest_first(sequences: list[TokenSequence]) -> Iterator[TokenSequence]:
    """Sequences by length, branches right behind their trunk in the order in which they came."""
    groups: list[list[TokenSequence]] = []
    for sequence in sequences:
        if sequence.trunk is None or not groups:
            groups.append([])
        groups[-1].append(sequence)
    for group in sorted(groups, key=lambda group: -len(group[0].token_ids)):
        yield from group


def n_new(sequence: TokenSequence) -> int:
    """Tokens to be computed for it, as planned."""
    return len(sequence.token_ids) - sequence.n_shared
