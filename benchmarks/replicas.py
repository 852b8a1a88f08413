"""How much of the time of many replicas is work, where each takes the next part by claiming it.

    python benchmarks/replicas.py [--replicas 1 10 100 1000] [--parts 100000] [--spread 0.5]

The order of parts, claims and what marks a part done are those of a run, in a folder; only the engine is not
there: a part takes as long as its size says, by a clock that stands still while claims are made. Sizes are
spread log-normally. Prints efficiency (time worked by all / replicas times the time until the last part is
done), what a claim costs in real time, and the memory of the process that stands for all. Exits with 1 where
the efficiency is under 0.95 while there are 20 parts a replica.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokscore.dataset.claims.claiming import Claims
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import Part
from tokscore.rendering.executors.work import largest_first

TABLE = "tokens"
LEAST = 0.95
PARTS_A_REPLICA = 20


class Simulated(NamedTuple):
    """What replicas did.

    Attributes:
        efficiency: Of 1.
        claim_ms: Real milliseconds of a claim, with what is written and listed for it.
        n_done: Parts.
    """

    efficiency: float
    claim_ms: float
    n_done: int


def simulate(folder: Path, n_parts: int, n_replicas: int, spread: float, start_s: float = 0.0) -> Simulated:
    """Have replicas work on parts.

    Args:
        folder: Empty.
        n_parts: Of the run.
        n_replicas: That begin at once.
        spread: Standard deviation of the logarithm of a part's seconds; their median is 60.
        start_s: Seconds until a replica takes its first part.
    """
    chance = random.Random(0)
    seconds = {i: 60 * chance.lognormvariate(0, spread) for i in range(n_parts)}
    order = largest_first(
        [Part(i, 0, i, i + 1, 1) for i in range(n_parts)], {i: int(s * 1e6) for i, s in seconds.items()}
    )
    (folder / TABLE).mkdir()
    claims = [Claims(folder, TABLE, f"replica {i}") for i in range(n_replicas)]
    taken: list[Iterator[int]] = [each.parts(order, others=False, seed=i) for i, each in enumerate(claims)]
    # (when it is free, replica, part that it has then done)
    free: list[tuple[float, int, int | None]] = [(start_s, i, None) for i in range(n_replicas)]
    started, n_done, end_s = time.perf_counter(), 0, 0.0
    while free:
        now_s, replica, part = heapq.heappop(free)
        if part is not None:
            (folder / TABLE / part_name(part)).touch()
            claims[replica].release(1)
            n_done, end_s = n_done + 1, now_s
        following = next(taken[replica], None)
        if following is not None:
            heapq.heappush(free, (now_s + seconds[following], replica, following))
    elapsed_s = time.perf_counter() - started
    return Simulated(sum(seconds.values()) / (n_replicas * end_s), 1e3 * elapsed_s / n_parts, n_done)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 10, 100, 1_000])
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--spread", type=float, default=0.5)
    options = parser.parse_args()
    is_wrong = False
    for n_replicas in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            found = simulate(Path(folder), options.parts, n_replicas, options.spread)
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{n_replicas:>5} replicas, {found.n_done:,} parts: efficiency {found.efficiency:.4f}, "
            f"{found.claim_ms:.2f} ms a claim, {mib:,.0f} MiB"
        )
        is_wrong |= found.n_done != options.parts
        is_wrong |= found.efficiency < LEAST and options.parts >= PARTS_A_REPLICA * n_replicas
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
