"""Seconds that parts take on many replicas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# Of which `--dry-run` tells the time.
REPLICAS = (1, 8, 64)


def seconds_on(n_replicas: int, part_s: Sequence[float], start_s: float = 0.0) -> float:
    """Seconds until the last part is done, where each replica takes the largest open part as it gets free.

    Args:
        n_replicas: At least 1.
        part_s: Seconds of each part.
        start_s: Until a replica takes its first part.

    Source:
        Graham (1969), Bounds on Multiprocessing Timing Anomalies: at most 4/3 of the best that there is.
    """
    if not part_s:
        return 0.0
    free = [start_s] * min(n_replicas, len(part_s))
    for elapsed_s in sorted(part_s, reverse=True):
        heapq.heapreplace(free, free[0] + elapsed_s)
    return max(free)
