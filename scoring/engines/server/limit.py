"""How many requests a server is given at once: as many as still bring more throughput."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

START = 4
GROWTH = 1.5
BACK_OFF = 0.7
# More throughput than before by this share is growth; latency beyond this multiple of its lowest is a queue.
BETTER = 1.05
SLOWER = 3.0


class AdaptiveLimit:
    """The number of requests at once; it grows while throughput grows.

    It looks back whenever as many requests were answered as it allows. Refusals (429) and a latency that
    rises without more throughput lower it.

    Attributes:
        value: Requests at once, at least 1.
    """

    def __init__(self, most: int, clock: Callable[[], float] = monotonic) -> None:
        """Begin low.

        Args:
            most: Its highest value.
            clock: Seconds.
        """
        self.value = min(START, most)
        self._most = most
        self._clock = clock
        self._rate = 0.0
        self._lowest_latency = float("inf")
        self._begin()

    def _begin(self) -> None:
        self._began = self._clock()
        self._n_answers = self._n_tokens = 0
        self._latency = 0.0
        self._is_refused = False

    def answered(self, n_tokens: int, latency_s: float) -> None:
        """Count an answer, for a prompt of so many tokens after so many seconds."""
        self._n_answers += 1
        self._n_tokens += n_tokens
        self._latency += latency_s
        if self._n_answers < self.value:
            return
        rate = self._n_tokens / max(self._clock() - self._began, 1e-9)
        latency = self._latency / self._n_answers
        self._lowest_latency = min(self._lowest_latency, latency)
        if rate > self._rate * BETTER:
            self.value = min(max(int(self.value * GROWTH), self.value + 1), self._most)
        elif latency > self._lowest_latency * SLOWER and rate < self._rate:
            self._lower()
        self._rate = max(self._rate, rate)
        self._begin()

    def refused(self) -> None:
        """Count a refusal; several of the same time lower the limit once."""
        if not self._is_refused:
            self._lower()
            # What was possible before may be again.
            self._rate = 0.0
            self._begin()
            self._is_refused = True

    def _lower(self) -> None:
        self.value = max(int(self.value * BACK_OFF), 1)
