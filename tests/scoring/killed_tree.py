"""Runs `score` over trees in forks of one process, which kill themselves in the middle; see test_killed.py.

Arguments: model, engine, folder for the undisturbed dataset, folder for the killed one, and after how many
finished sequences each run in turn is killed. Prints how many parts were done after each kill.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.scoring.samples import MemorySource, random_ids

N_GROUPS, N_SAMPLES = 3, 8


def groups() -> list[list[list[int]]]:
    """A part is a prompt and samples behind it, of which every second one goes on with another's beginning."""
    parts = []
    for number in range(N_GROUPS):
        prompt = random_ids(number, 90).tolist()
        samples: list[list[int]] = []
        for at in range(N_SAMPLES):
            begin = samples[-1][: 90 + 3 * at] if at % 2 else prompt
            samples.append([*begin, *random_ids(100 * number + at + 50, 30 + at).tolist()])
        parts.append(samples)
    return parts


def run(model: str, engine: str, out: str, n_sequences: int | None) -> None:
    import torch

    from tokscore.scoring import plan_engine
    from tokscore.scoring.run import score

    torch.set_num_threads(1)
    n_finished = -1  # the first call says that the engine is ready

    def progress(_done: int, _total: int) -> None:
        nonlocal n_finished
        n_finished += 1
        if n_finished == n_sequences:
            os.kill(os.getpid(), signal.SIGKILL)

    summary = score(
        MemorySource(groups()), out, plan_engine(model, engine=engine, top_k=5), progress=progress
    )
    assert summary.n_unique < summary.n_logical / 2
    assert summary.n_engine_tokens < summary.n_logical


def fork(*arguments: str, n_sequences: int | None = None) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            run(*arguments, n_sequences)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main(model: str, engine: str, undisturbed: str, killed: str, *moments: str) -> None:
    assert fork(model, engine, undisturbed) == 0
    for n_sequences in moments:
        assert os.waitstatus_to_exitcode(fork(model, engine, killed, n_sequences=int(n_sequences))) == -9
        print(len(list(Path(killed, "scores").glob("part-*.parquet"))), flush=True)
    assert fork(model, engine, killed) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
