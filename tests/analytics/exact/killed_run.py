"""Runs over two datasets in forks of one process, and kills each at a random moment; see test_parts.py.

Arguments: the four paths of a `Pair`, folder for the undisturbed parts, folder for the killed ones, number of
kills. Prints how many parts were there after each kill.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM  # noqa: F401 (so that the forks need not)

import tokscore.analytics.exact.run
import tokscore.scoring.exact.measuring
from tests.analytics.exact.pairs import Pair
from tokscore.analytics.exact.report import exact_report

tokscore.analytics.exact.run.MIN_PART_TOKENS = 100


def run(pair: Pair, folder: Path) -> None:
    torch.set_num_threads(1)
    exact_report(pair.run(folder))


def fork(pair: Pair, folder: Path) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            run(pair, folder)
            code = 0
        finally:
            os._exit(code)
    return child


def n_done(folder: Path) -> int:
    return len(list(folder.glob("part-*.parquet")))


def wait_for(folder: Path, n_parts: int, child: int) -> None:
    while n_done(folder) < n_parts:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before"
        time.sleep(0.001)


def main(pair: Pair, undisturbed: Path, killed: Path, n_kills: int) -> None:
    child = fork(pair, undisturbed)
    wait_for(undisturbed, 1, child)
    started = time.monotonic()
    assert os.waitpid(child, 0)[1] == 0
    n_parts = n_done(undisturbed)
    part_s = (time.monotonic() - started) / n_parts
    chance = random.Random(0)
    # Somewhere in the part behind so many others, and once while the models start.
    for n_before in [0, *sorted(chance.sample(range(1, n_parts - 2), n_kills - 1))]:
        child = fork(pair, killed)
        wait_for(killed, n_before, child)
        time.sleep(chance.uniform(0, part_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(n_done(killed), flush=True)
    assert os.waitpid(fork(pair, killed), 0)[1] == 0


if __name__ == "__main__":
    paths = [Path(each) for each in sys.argv[1:-1]]
    main(Pair(*paths[:4]), *paths[4:], int(sys.argv[-1]))
