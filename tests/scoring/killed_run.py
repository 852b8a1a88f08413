"""Runs `score` again and again in forks of one process and kills each at a random moment; see test_killed.py.

Arguments: model, input, folder for the undisturbed dataset, folder for the killed one, number of kills.
Prints how many parts were done after each kill.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401 (so that the forks need not)

import tokscore.rendering.attribution.renderer
import tokscore.scoring.engines.transformers  # noqa: F401 (likewise)
from tokscore.rendering.inputs import open_source
from tokscore.scoring import plan_engine
from tokscore.scoring.run import score

PART_BYTES = 1_500


def run(model: str, lines: str, out: str) -> None:
    torch.set_num_threads(1)
    source = open_source([lines], model, part_bytes=PART_BYTES)
    score(source, out, plan_engine(model, engine="transformers", top_k=259))


def fork(*arguments: str) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            run(*arguments)
            code = 0
        finally:
            os._exit(code)
    return child


def n_done(out: str) -> int:
    return len(list(Path(out, "scores").glob("part-*.parquet")))


def main(model: str, lines: str, undisturbed: str, killed: str, n_kills: str) -> None:
    started = time.monotonic()
    assert os.waitpid(fork(model, lines, undisturbed), 0)[1] == 0
    n_parts = n_done(undisturbed)
    part_s = (time.monotonic() - started) / n_parts
    chance = random.Random(0)
    # Somewhere in the part behind so many others, and once while it starts.
    for n_before in [0, *sorted(chance.sample(range(n_parts - 1), int(n_kills) - 1))]:
        child = fork(model, lines, killed)
        while n_done(killed) < n_before:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 2 * part_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(n_done(killed), flush=True)
    assert os.waitpid(fork(model, lines, killed), 0)[1] == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
