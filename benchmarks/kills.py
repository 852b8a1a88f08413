"""Kills `tokscore render` and `tokscore logprobs` at random moments and compares what they end with.

    python benchmarks/kills.py [--kills 200] [--seed 0]
    python benchmarks/kills.py --each 20

SIGKILL, SIGTERM, SIGINT and SIGINT twice, to one process, to two, and to two replicas, anywhere from the
start of Python to its end; SIGKILL of one replica, too, and of the whole group of processes. With --each,
SIGKILL of a replica of this machine, of an actor of Ray, of the process that started them, and of its group,
that often each, while two of them score. A killed command is started again until it is done; then `verify`
must find all parts whole, the rows must be those of a run that nobody disturbed, with nothing left beside
them, and nothing may have printed a traceback. Exits with 1 otherwise.
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

from tokscore.dataset.verification.verify import verify

MAX_KILLS = 6
N_FILES, N_RECORDS = 6, 8
# So that as much time goes into work as into starting.
N_MANY_FILES, N_MANY_RECORDS = 24, 80
TABLES = ("conversations", "messages", "spans")
SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}
# To other processes than the one that was started.
GROUP, REPLICA, ACTOR = "SIGKILL of the group", "SIGKILL of a replica", "SIGKILL of an actor"
HARD = ("SIGKILL", GROUP, REPLICA, ACTOR)
# What stands in the command line of a replica, and of an actor of Ray.
WORDS = {REPLICA: b"tokscore.rendering.executors.process", ACTOR: b"RayActor"}
# Beside 0: the codes of the signals, whether Python or the system ends the process.
CODES = {0, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
ATOL = 5e-5
LOOK_S = 0.05


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


def write_inputs(folder: Path, n_files: int, n_records: int) -> list[str]:
    """Some files of conversations, of which each is a part."""
    chance = random.Random(1)
    files = [folder / f"convs-{i}.jsonl" for i in range(n_files)]
    for i, path in enumerate(files):
        records = [
            {
                "id": "x",
                "messages": [
                    {"role": "user", "content": f"{i} {j} {'word ' * chance.randrange(9)}"},
                    {"role": "assistant", "content": "yes" * chance.randrange(7)},
                ],
            }
            for j in range(n_records)
        ]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(path) for path in files]


def make_cases(folder: Path, *, hard: bool) -> list[Case]:
    """Command lines and what they make; where not all signals are sent, those with two replicas alone."""
    model = str(make_model(folder / "model"))
    processes = {"2 replicas": ["--replicas", "2"]}
    if hard:
        files = write_inputs(folder, N_MANY_FILES, N_MANY_RECORDS)
        processes |= {"2 actors": ["--executor", "ray", "--replicas", "2"]}
    else:
        files = write_inputs(folder, N_FILES, N_RECORDS)
        processes |= {"1 process": ["--workers", "1"], "2 processes": ["--workers", "2"]}
    cases: list[Case] = []
    for command in ("logprobs",) if hard else ("render", "logprobs"):
        for name, options in processes.items():
            arguments = [command, *files, "-m", model, *options]
            if command == "logprobs":
                arguments += ["--engine", "transformers", "--top-k", "5"]
            out, log = folder / f"undisturbed-{len(cases)}", folder / "log"
            started = time.monotonic()
            if start(arguments, out, log).wait():
                raise SystemExit(log.read_text())
            cases.append(Case(f"{command}, {name}", arguments, tables(out), time.monotonic() - started))
            print(f"{cases[-1].name}: {cases[-1].elapsed_s:.1f} s", file=sys.stderr)
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


def below(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(place.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(place.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


def others(process: subprocess.Popen[bytes], kind: str) -> list[int]:
    """Replicas or actors that run for the process."""
    found = []
    for pid in below(process.pid):
        with suppress(OSError):
            if WORDS[kind] in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill_others(process: subprocess.Popen[bytes], kind: str, chance: random.Random) -> bool:
    """Kill the group of the process, or one that works for it, as soon as there is one; False if it ended."""
    while process.poll() is None:
        if kind == GROUP:
            os.killpg(process.pid, signal.SIGKILL)
            return True
        if found := others(process, kind):
            with suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
                return True
        time.sleep(LOOK_S)
    return False


def kinds_for(case: Case, kills: Counter[str], each: int | None) -> list[str]:
    """Signals that may be sent to a case next."""
    if each is None:
        return [*SIGNALS, GROUP, *([REPLICA] if "replicas" in case.name else [])]
    fit = {"SIGKILL", GROUP, REPLICA if "replicas" in case.name else ACTOR}
    sent = Counter[str]()
    for name, n in kills.items():
        sent[name.partition(":")[0]] += n
    return [kind for kind in HARD if kind in fit and sent[kind] < each]


def main() -> None:
    """Kill, compare, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--each", type=int, help="kills of each kind of SIGKILL, and of no other")
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
        cases = make_cases(folder, hard=options.each is not None)
        elapsed_s = {case.name: case.elapsed_s for case in cases}
        n_kills = options.kills if options.each is None else options.each * len(HARD)
        for case in itertools.cycle(cases):
            if sum(kills.values()) >= n_kills:
                break
            if not kinds_for(case, kills, options.each):
                continue
            out, log = folder / "out", folder / "log"
            for n_before in itertools.count():
                process, started, was_reached = start(case.arguments, out, log), time.monotonic(), False
                # On a machine that is slower now, a run that is always killed would never end.
                kinds = kinds_for(case, kills, options.each)
                if sum(kills.values()) < n_kills and n_before < MAX_KILLS and kinds:
                    kind = chance.choice(kinds)
                    # The run outlives some, and meets the next.
                    n_times = MAX_KILLS // 2 if kind in WORDS and options.each is not None else 1
                    for _ in range(n_times):
                        time.sleep(chance.uniform(0, elapsed_s[case.name] / n_times))
                        is_reached = (
                            send(process, SIGNALS[kind], chance)
                            if kind in SIGNALS
                            else kill_others(process, kind, chance)
                        )
                        if is_reached:
                            was_reached = True
                            kills[f"{kind}: {case.name}"] += 1
                        if kind not in kinds_for(case, kills, options.each):
                            break
                code = process.wait(timeout=600)
                said = log.read_text()
                if "Traceback" in said or "Exception ignored" in said or code not in CODES:
                    wrong.append(f"{case.name}: exit code {code}\n{said}")
                if not code:
                    # A machine that others use is not always as fast.
                    if not was_reached and (not n_before or options.each is not None):
                        elapsed_s[case.name] = time.monotonic() - started
                    break
            # A process that was killed leaves its workers to themselves for a moment.
            found = tables(out)
            verified = verify(out)
            if not verified.is_whole:
                wrong.append(f"{case.name}: {verified.n_missing} parts are missing, {verified.faults}")
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
