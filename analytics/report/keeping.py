"""Which conversations a page of limited size keeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Keeping(Generic[T]):
    """Keeps the items of highest priority that fit into a number of bytes together.

    Memory holds what is kept and one more.

    Attributes:
        n_offered: Items offered.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._heap: list[tuple[float, int, int, T]] = []
        self._worst_dropped = float("-inf")
        self.n_offered = 0

    def offer(self, priority: float, make: Callable[[], tuple[T, int]]) -> None:
        """Offer one item.

        Args:
            priority: Higher is kept first; among equals, the earlier.
            make: Makes the item and its size in bytes; not called where it cannot be kept anyway.
        """
        self.n_offered += 1
        if priority <= self._worst_dropped:
            return
        item, size_bytes = make()
        if size_bytes > self._max_bytes:
            return
        heapq.heappush(self._heap, (priority, -self.n_offered, size_bytes, item))
        self._used += size_bytes
        while self._used > self._max_bytes:
            dropped, _, freed, _ = heapq.heappop(self._heap)
            self._used -= freed
            self._worst_dropped = dropped

    def kept(self) -> list[T]:
        """What is kept, highest priority first."""
        return [entry[3] for entry in sorted(self._heap, reverse=True)]
