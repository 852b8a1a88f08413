"""Processor time of commands on little, most of which is their start.

    python benchmarks/start.py --model DIR --on convs.jsonl [--runs 7]

The first three conversations are rendered and scored by the model, then `render`, `stats`, `show` and `diff`
run in turns. Medians of all processes that each starts are printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

N_CONVERSATIONS = 3


def cpu_seconds(*arguments: str | Path) -> float:
    """Of a run of tokscore and what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "tokscore", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory")
    parser.add_argument("--on", type=Path, required=True, help="conversations")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, tokens = folder / "few.jsonl", folder / "tokens"
        with chosen.on.open(encoding="utf-8") as lines:
            few.write_text("".join(islice(lines, N_CONVERSATIONS)), encoding="utf-8")
        first = str(json.loads(few.read_text("utf-8").splitlines()[0])["id"])
        render = ("render", few, "-m", chosen.model, "-o", tokens)
        cpu_seconds(*render)
        for dtype in ("float32", "bfloat16"):
            out = folder / dtype
            cpu_seconds("logprobs", tokens, "-m", chosen.model, "--dtype", dtype, "-o", out)
        scores = folder / "float32"
        commands: dict[str, tuple[str | Path, ...]] = {
            "render": render,
            "stats": ("stats", scores),
            "show": ("show", scores, first),
            "diff": ("diff", scores, folder / "bfloat16"),
        }
        found: dict[str, list[float]] = {command: [] for command in commands}
        for _ in range(chosen.runs):
            for command, arguments in commands.items():
                if command == "render":
                    shutil.rmtree(tokens)
                found[command].append(cpu_seconds(*arguments))
        for command, seconds in found.items():
            print(
                f"{command:8} {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
            )


if __name__ == "__main__":
    main()
