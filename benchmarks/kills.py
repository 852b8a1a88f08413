"""Kills `tokscore render` and `tokscore logprobs` at random moments and compares what they end with.

    python benchmarks/kills.py [--kills 200] [--seed 0]

SIGKILL, SIGTERM, SIGINT and SIGINT twice, to one process, to two, and to two replicas, anywhere from the
start of Python to its end; SIGKILL of one replica, too, and of the whole group of processes. A killed
command is started again until it is done; then its rows must be those of a run that nobody disturbed, with
nothing left beside them, and nothing may have printed a traceback. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import polars as pl
from memory import make_model

from tokscore.dataset.claims.claim import read_claims

MAX_KILLS = 6
N_FILES, N_RECORDS = 6, 8
TABLES = ("conversations", "messages", "spans")
SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}
# To another process than the one that was started.
GROUP, REPLICA = "SIGKILL of the group", "SIGKILL of a replica"
# Beside 0: the codes of the signals, whether Python or the system ends the process.
CODES = {0, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
ATOL = 5e-5


class Case(NamedTuple):
    """One command line, and what it makes when nobody disturbs it."""

    name: str
    arguments: list[str]
    tables: dict[str, pl.DataFrame]
    elapsed_s: float


def start(arguments: list[str], out: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the command in a group of processes of its own, as a terminal does."""
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "tokscore.cli.main", *arguments, "-o", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )


def tables(out: Path) -> dict[str, pl.DataFrame]:
    """All rows of a dataset."""
    kind = "scores" if (out / "scores").is_dir() else "tokens"
    return {name: pl.read_parquet(out / name / "*.parquet") for name in (kind, *TABLES)}


def differences(found: dict[str, pl.DataFrame], expected: dict[str, pl.DataFrame]) -> list[str]:
    """Tables whose rows differ, logprobs by more than another order of adding explains."""
    wrong = [] if found.keys() == expected.keys() else ["tables"]
    for name in found.keys() & expected.keys():
        floats = [column for column, kind in found[name].schema.items() if _is_float(kind)]
        if not found[name].drop(floats).equals(expected[name].drop(floats)):
            wrong.append(name)
            continue
        wrong += [
            f"{name}.{column}"
            for column in floats
            if not _is_close(found[name][column], expected[name][column])
        ]
    return wrong


def _is_float(kind: pl.DataType) -> bool:
    return kind.is_float() or (isinstance(kind, pl.List | pl.Array) and _is_float(kind.inner))


def _is_close(found: pl.Series, expected: pl.Series) -> bool:
    while isinstance(found.dtype, pl.List | pl.Array):
        found, expected = found.explode(), expected.explode()
    if not found.is_null().equals(expected.is_null()):
        return False
    return bool(((found - expected).abs() <= ATOL).fill_null(value=True).all())


def make_cases(folder: Path) -> list[Case]:
    """Render and logprobs with one process and with two."""
    chance = random.Random(1)
    files = []
    for i in range(N_FILES):
        files.append(str(folder / f"convs-{i}.jsonl"))
        records = [
            {
                "id": "x",
                "messages": [
                    {"role": "user", "content": f"{i} {j} {'word ' * chance.randrange(9)}"},
                    {"role": "assistant", "content": "yes" * chance.randrange(7)},
                ],
            }
            for j in range(N_RECORDS)
        ]
        Path(files[-1]).write_text("".join(json.dumps(record) + "\n" for record in records))
    model = str(make_model(folder / "model"))
    cases = []
    for command in ("render", "logprobs"):
        for name, processes in (
            (f"{command}, 1 process", ["--workers", "1"]),
            (f"{command}, 2 processes", ["--workers", "2"]),
            (f"{command}, 2 replicas", ["--replicas", "2"]),
        ):
            arguments = [command, *files, "-m", model, *processes]
            if command == "logprobs":
                arguments += ["--engine", "transformers", "--top-k", "5"]
            out, log = folder / f"undisturbed-{len(cases)}", folder / "log"
            started = time.monotonic()
            if start(arguments, out, log).wait():
                raise SystemExit(log.read_text())
            cases.append(Case(name, arguments, tables(out), time.monotonic() - started))
    return cases


def send(
    process: subprocess.Popen[bytes], signals: tuple[signal.Signals, ...], chance: random.Random
) -> bool:
    """Send the signals, some time apart; SIGTERM and SIGKILL to the process alone. False if it had ended."""
    reached = False
    for number in signals:
        if process.poll() is None:
            reached = True
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        time.sleep(chance.choice([0.0, 0.01, 0.1, 0.4]))
    return reached


def kill_others(process: subprocess.Popen[bytes], kind: str, out: Path, chance: random.Random) -> bool:
    """Kill the group of the process, or one that has a part of the output in hand; False if there is none."""
    if process.poll() is not None:
        return False
    if kind == GROUP:
        os.killpg(process.pid, signal.SIGKILL)
        return True
    owners = [claim.pid for claim in read_claims(out).claims.values() if claim.pid != process.pid]
    if not owners:
        return False
    with suppress(ProcessLookupError):
        os.kill(chance.choice(owners), signal.SIGKILL)
    return True


def main() -> None:
    """Kill, compare, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    # In the background of a shell it is ignored, and would be by what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kills: Counter[str] = Counter()
    wrong: list[str] = []
    n_rows = n_datasets = n_wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = make_cases(folder)
        elapsed_s = {case.name: case.elapsed_s for case in cases}
        while sum(kills.values()) < options.kills:
            case = cases[n_datasets % len(cases)]
            out, log = folder / "out", folder / "log"
            for n_before in itertools.count():
                process, started, was_reached = start(case.arguments, out, log), time.monotonic(), False
                # On a machine that is slower now, a run that is always killed would never end.
                if sum(kills.values()) < options.kills and n_before < MAX_KILLS:
                    others = [GROUP, REPLICA] if "replicas" in case.name else [GROUP]
                    kind = chance.choice([*SIGNALS, *others])
                    time.sleep(chance.uniform(0, elapsed_s[case.name]))
                    was_reached = (
                        send(process, SIGNALS[kind], chance)
                        if kind in SIGNALS
                        else kill_others(process, kind, out, chance)
                    )
                    if was_reached:
                        kills[f"{kind}: {case.name}"] += 1
                code = process.wait(timeout=600)
                said = log.read_text()
                if "Traceback" in said or "Exception ignored" in said or code not in CODES:
                    wrong.append(f"{case.name}: exit code {code}\n{said}")
                if not code:
                    # A machine that others use is not always as fast.
                    if not n_before and not was_reached:
                        elapsed_s[case.name] = time.monotonic() - started
                    break
            # A process that was killed leaves its workers to themselves for a moment.
            found = tables(out)
            wrong += [f"{case.name}: {each} differ" for each in differences(found, case.tables)]
            wrong += [f"{case.name}: {path} is left" for path in out.rglob(".*") if path.is_file()]
            n_rows += sum(len(table) for table in found.values())
            n_datasets += 1
            print(f"{sum(kills.values())} kills, {n_datasets} datasets, {len(wrong)} wrong", file=sys.stderr)
            print(*wrong[n_wrong:], sep="\n", end="", file=sys.stderr)
            n_wrong = len(wrong)
            shutil.rmtree(out)
    for kind, n in sorted(kills.items()):
        print(f"{n:>4} {kind}")
    print(f"{sum(kills.values())} kills, {n_datasets} datasets, {n_rows:,} rows compared, {len(wrong)} wrong")
    for each in wrong:
        print(each)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
