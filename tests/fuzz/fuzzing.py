"""What fuzzers share: how many cases, their seeds, hostile values, a limit on time, and a count of outcomes.

`make fuzz` runs the long sweeps; TOKSCORE_FUZZ=0.1 runs a tenth of them, TOKSCORE_FUZZ_SEED others.
"""

from __future__ import annotations

import copy
import io
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import typer

from tokscore.cli.app import app
from tokscore.cli.printing.console import GuardedStream

SEED = int(os.environ.get("TOKSCORE_FUZZ_SEED", "0"))
_SHARE = float(os.environ.get("TOKSCORE_FUZZ", "0"))
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**63, 10**9, 10**18, -(10**18), 10**400,
    0.0, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), "", "many", "0", "a" * 10_000,
    "\ud800", "\x1b[31m", "\0", [], {}, [[]], [None], [{}], {"a": 1}, [1, "a"], "true", "[]", '{"a": ', "system",
)  # fmt: skip


class HangError(BaseException):
    """Past the limit; no handler of Exception takes it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise HangError after that many seconds of processor time."""

    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    started = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if time.process_time() - started > seconds:  # C code that no signal ends
        raise HangError


@cache
def commands() -> Any:  # Any: typer's own click has no public name
    """All commands of tokscore, made once: that takes longer than most of them."""
    return typer.main.get_command(app)


class Printed:
    """What is printed to stdout and stderr while it is entered."""

    stdout = stderr = ""

    def __enter__(self) -> Self:
        self._before = sys.stdout, sys.stderr
        self._files = io.BytesIO(), io.BytesIO()
        sys.stdout, sys.stderr = (
            GuardedStream(io.TextIOWrapper(file, encoding="utf-8")) for file in self._files
        )
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # The files are closed with the streams.
        self.stdout, self.stderr = (file.getvalue().decode() for file in self._files)
        sys.stdout, sys.stderr = self._before


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with every key of it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutate_value(value: Any, chance: random.Random, hostile: tuple[Any, ...] = HOSTILE) -> Any:
    """A JSON value with one thing changed in place: replaced, deleted, doubled, swapped or renamed."""
    found = list(places(value))
    if not found:
        return copy.deepcopy(chance.choice(hostile))
    container, key = chance.choice(found)
    way = chance.random()
    if way < 0.5:
        container[key] = copy.deepcopy(chance.choice(hostile))
    elif way < 0.65:
        del container[key]
    elif way < 0.8:
        other, other_key = chance.choice(found)
        other[other_key] = copy.deepcopy(container[key])
    elif way < 0.9 and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif isinstance(container, dict):
        container[chance.choice(found)[1] if chance.random() < 0.5 else f"{key}_"] = container.pop(key)
    return value


def run_cases(
    quick: int, long: int, case: Callable[[int, random.Random], str], *, limit_s: float = 20.0
) -> Counter[str]:
    """Outcomes of many cases; those that end in a traceback or a hang fail the test, all named at its end.

    Args:
        quick: How many by default.
        long: How many by `make fuzz`.
        case: Takes the number of a case and its chance, and gives the name of the outcome. AssertionError is
            a change without a word; any other exception is a traceback.
        limit_s: Seconds of processor time for a case.
    """
    n_cases = round(long * _SHARE) or quick
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    kinds: set[str] = set()
    for number in range(n_cases):
        if number and not number % 1_000:
            print(f"{number:,} cases of seed {SEED} so far: {dict(outcomes)}", flush=True)
        try:
            with limited(limit_s):
                outcomes[case(number, random.Random(SEED * 1_000_003 + number))] += 1
        except (Exception, HangError) as error:  # noqa: BLE001 (whatever it is)
            frames = traceback.extract_tb(error.__traceback__)
            kind = (
                f"{type(error).__name__}: {str(error)[:600]} (at {frames[-1].filename}:{frames[-1].lineno})"
            )
            outcomes["failed"] += 1
            if kind not in kinds:
                kinds.add(kind)
                own = [f"{f.filename}:{f.lineno}" for f in frames if "/tokscore/" in f.filename]
                failures.append(f"case {number} of seed {SEED}: {kind} via {' '.join(own[-4:])}")
                print(failures[-1], flush=True)
    print(f"{n_cases:,} cases of seed {SEED}: {dict(outcomes)}", flush=True)
    assert not failures, "\n".join(failures[:20])
    return outcomes
