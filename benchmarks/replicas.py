"""How much of the time of many replicas is work, where each takes the next part by claiming it.

    python benchmarks/replicas.py [--replicas 1 10 100 1000] [--parts 100000] [--spread 0.5]

The plan of a file, the order of its parts, claims and what marks a part done are those of a run, in a folder;
only the engine is not there: a part takes as long as its bytes say, by a clock that stands still while claims
are made. Sizes are spread log-normally. Prints efficiency (time worked by all / replicas times the time until
the last part is done), and what a claim costs the processor.

Then the process that watches replicas of one machine gets, for some real seconds, the messages of the largest
number of replicas: each tells every second how far it is, and every minute that a part is done. Prints the
share of a core that it takes, and its memory.

Exits with 1 where the efficiency is under 0.95 while there are 20 parts a replica, or the watching process
takes a tenth of a core or 1 GB.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import IO, Any, NamedTuple

from tokscore.dataset.claims.claiming import Claims
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import Part
from tokscore.rendering.executors.local import LocalReplicas, _Running
from tokscore.rendering.executors.memory import MemoryWatch
from tokscore.rendering.executors.process import Done, Working, write_message
from tokscore.rendering.executors.replica import Order
from tokscore.rendering.executors.work import Outcome, largest_first
from tokscore.rendering.reading.plan import plan_files
from tokscore.scoring.part_scorer import ScoreCounts

TABLE = "tokens"
LEAST = 0.95
PARTS_A_REPLICA = 20
MEDIAN_LETTERS, MEDIAN_S = 400, 60.0
MOST_OF_A_CORE, MOST_BYTES = 0.1, 1e9


class Simulated(NamedTuple):
    """What replicas did.

    Attributes:
        efficiency: Of 1.
        claim_ms: Milliseconds of the processor for a claim, with what is written and listed for it.
        n_done: Parts.
    """

    efficiency: float
    claim_ms: float
    n_done: int


def planned(folder: Path, n_parts: int, spread: float) -> Sequence[Part]:
    """The plan of a file of conversations of which each is a part.

    Args:
        folder: For the file.
        n_parts: Of the plan.
        spread: Standard deviation of the logarithm of a text's length.
    """
    chance, path = random.Random(0), folder / "convs.jsonl"
    with path.open("w") as file:
        for i in range(n_parts):
            text = "x" * int(MEDIAN_LETTERS * chance.lognormvariate(0, spread))
            file.write(f'{{"id": "c{i}", "messages": [{{"role": "user", "content": "{text}"}}]}}\n')
    return plan_files([str(path)], part_bytes=1).parts


def simulate(folder: Path, parts: Sequence[Part], n_replicas: int, start_s: float = 0.0) -> Simulated:
    """Have replicas work on parts.

    Args:
        folder: Empty.
        parts: Of the plan.
        n_replicas: That begin at once.
        start_s: Seconds until a replica takes its first part.
    """
    sizes = {part.index: part.stop - part.start for part in parts}
    seconds = {index: MEDIAN_S * size / MEDIAN_LETTERS for index, size in sizes.items()}
    order = largest_first(parts, sizes)
    (folder / TABLE).mkdir()
    claims = [Claims(folder, TABLE, f"replica {i}") for i in range(n_replicas)]
    taken: list[Iterator[int]] = [each.parts(order, others=False, seed=i) for i, each in enumerate(claims)]
    # (when it is free, replica, part that it has then done)
    free: list[tuple[float, int, int | None]] = [(start_s, i, None) for i in range(n_replicas)]
    started, n_done, end_s = time.process_time(), 0, 0.0
    while free:
        now_s, replica, part = heapq.heappop(free)
        if part is not None:
            (folder / TABLE / part_name(part)).touch()
            claims[replica].release(1)
            n_done, end_s = n_done + 1, now_s
        following = next(taken[replica], None)
        if following is not None:
            heapq.heappush(free, (now_s + seconds[following], replica, following))
    elapsed_s = time.process_time() - started
    return Simulated(sum(seconds.values()) / (n_replicas * end_s), 1e3 * elapsed_s / len(parts), n_done)


class _Reporting:
    """Stands for the process of a replica, whose messages come from elsewhere."""

    pid = 2**22 + 1  # of nobody
    returncode = 0
    stdin = None

    def __init__(self, stdout: IO[bytes]) -> None:
        self.stdout = stdout

    def poll(self) -> int:
        return self.returncode

    def wait(self, _timeout: float | None = None) -> int:
        return self.returncode


class _Watched(LocalReplicas):
    """Watches replicas that are given to it as streams."""

    streams: Sequence[IO[bytes]]

    def _start(self, number: int) -> None:
        process: Any = _Reporting(self.streams[number])  # Any: stands for a process
        running = _Running(number, process)
        self._running.append(running)
        Thread(target=self._listen, args=(running,), daemon=True).start()


def watch(parts: Sequence[Part], n_replicas: int, elapsed_s: float) -> float:
    """Share of a core that the watching process takes.

    Args:
        parts: That it knows of.
        n_replicas: That report to it.
        elapsed_s: Real seconds.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    pipes = [os.pipe() for _ in range(n_replicas)]
    if not os.fork():
        _report([os.fdopen(each, "wb") for _, each in pipes], elapsed_s)
        os._exit(0)
    for _, each in pipes:
        os.close(each)
    work: Any = None  # Any: no replica ends without a reason
    orders = [Order(work, [part.index for part in parts], "")] * n_replicas
    watched = _Watched(orders, [{}] * n_replicas, MemoryWatch(), lambda *_done: None, print)
    watched.streams = [os.fdopen(each, "rb") for each, _ in pipes]
    started, at_work = time.perf_counter(), time.process_time()
    totals = watched.run()
    share = (time.process_time() - at_work) / (time.perf_counter() - started)
    os.wait()
    assert totals.n_parts > 0
    return share


def _report(streams: Sequence[IO[bytes]], elapsed_s: float) -> None:
    counts: Mapping[str, float] = ScoreCounts()._asdict()
    began = time.monotonic()
    for second in range(int(elapsed_s)):
        for number, stream in enumerate(streams):
            until_s = began + second + number / len(streams)
            time.sleep(max(until_s - time.monotonic(), 0))
            write_message(stream, Working(1_000 * second))
            if (number + second) % MEDIAN_S == 0:
                write_message(stream, Done(number, Outcome(counts)))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 10, 100, 1_000])
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--watch-s", type=float, default=20.0, help="seconds of messages; 0 for none")
    options = parser.parse_args()
    is_wrong = False
    with tempfile.TemporaryDirectory() as folder:
        parts = planned(Path(folder), options.parts, options.spread)
    if options.watch_s:
        n_replicas = max(options.replicas)
        share = watch(parts, n_replicas, options.watch_s)
        n_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{n_replicas:>5} replicas watched: {share:.1%} of a core, {n_bytes / 1e6:,.0f} MB", flush=True)
        is_wrong |= share > MOST_OF_A_CORE or n_bytes > MOST_BYTES
    for n_replicas in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            found = simulate(Path(folder), parts, n_replicas)
        print(
            f"{n_replicas:>5} replicas, {found.n_done:,} parts: efficiency {found.efficiency:.4f}, "
            f"{found.claim_ms:.2f} ms a claim",
            flush=True,
        )
        is_wrong |= found.n_done != len(parts)
        is_wrong |= found.efficiency < LEAST and len(parts) >= PARTS_A_REPLICA * n_replicas
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
