"""Time of scoring samples behind one prompt, with and without sharing, from a dataset to a dataset."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from stored_tokens import StoredTokens

from tokscore.scoring.engines.spec import EngineSpec, plan_engine
from tokscore.scoring.run import ScoreSummary, score

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_SAMPLES, N_PROMPT_TOKENS, N_SAMPLE_TOKENS = 16, 1_600, 400
# Of the input without anything in common.
N_LONE, N_LONE_TOKENS = 12, 1_000
WAYS = ("off", "auto")


class Round(NamedTuple):
    """One input scored.

    Attributes:
        elapsed_s: From the dataset to the scores.
        cpu_s: Of all threads of the process meanwhile, which other processes do not lengthen.
        summary: Of the run.
    """

    elapsed_s: float
    cpu_s: float
    summary: ScoreSummary


def inputs(vocab_size: int) -> dict[str, list[NDArray[np.int32]]]:
    """Samples behind one prompt, and sequences with nothing in common."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, vocab_size, N_PROMPT_TOKENS, np.int32)
    samples = rng.integers(0, vocab_size, (N_SAMPLES, N_SAMPLE_TOKENS), np.int32)
    lone = rng.integers(0, vocab_size, (N_LONE, N_LONE_TOKENS), np.int32)
    return {"one prompt": [np.concatenate([prompt, sample]) for sample in samples], "lone": list(lone)}


def serve(connection: Connection, model: str, engine: str, dtype: str, way: str, name: str) -> None:
    """Score an input whenever something comes in, with an engine that its first run starts."""
    kept: list[Any] = []  # Any: an engine

    class StaysOpen:
        """The engine, which the end of a run does not stop."""

        def __getattr__(self, name: str) -> Any:  # Any: the attributes of an engine
            return getattr(kept[0], name)

        def close(self) -> None:
            pass

    @dataclass(frozen=True)
    class Started(EngineSpec):
        """An engine that is started once, as the first run asks for it."""

        def start(self, longest: int | None = None) -> Any:  # Any: stands for an engine
            if not kept:
                kept.append(EngineSpec.start(self, longest))
            return StaysOpen()

    planned = plan_engine(model, engine=engine, top_k=20, dtype=dtype, sharing=way)  # type: ignore[arg-type]
    spec = Started(planned.model, planned.identity, planned.settings)
    with tempfile.TemporaryDirectory() as folder:
        tokens = StoredTokens(Path(folder) / "tokens", inputs(planned.model.vocab_size)[name])
        number = 0
        while connection.recv():
            number += 1
            started, cpu_before = perf_counter(), process_time()
            summary = score(tokens, Path(folder) / f"scores-{number}", spec)
            connection.send(Round(perf_counter() - started, process_time() - cpu_before, summary))
    kept[0].close()


def measure_scoring(model: str, engines: Sequence[str], dtype: str, rounds: int) -> None:
    """Print what both inputs take, and how many tokens the engines compute for them."""
    context = multiprocessing.get_context("spawn")
    for engine in engines:
        print(f"\n{engine}")
        for name in inputs(8):
            ends: dict[str, Connection] = {}
            processes = []
            for way in WAYS:
                ends[way], there = context.Pipe()
                arguments = (there, model, engine, dtype, way, name)
                processes.append(context.Process(target=serve, args=arguments, daemon=True))
                processes[-1].start()
            print_input(name, interleaved(ends, rounds))
            for end, process in zip(ends.values(), processes, strict=True):
                end.send(False)
                process.join()


def interleaved(ends: dict[str, Connection], rounds: int) -> dict[str, list[Round]]:
    """Rounds of each way in turn, after one that does not count; who is first changes with every round."""
    found: dict[str, list[Round]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            ends[way].send(True)
            one: Round = ends[way].recv()
            if number:
                found[way].append(one)
    return found


def print_input(name: str, found: dict[str, list[Round]]) -> None:
    """Medians of the rounds and of their ratios."""
    for way, each in found.items():
        summary, elapsed_s = each[-1].summary, [one.elapsed_s for one in each]
        print(
            f"  {name:10} {way:10} {statistics.median(elapsed_s):8.2f} s "
            f"({min(elapsed_s):.2f} to {max(elapsed_s):.2f}), {_median_cpu(each):8.2f} s of processors, "
            f"{summary.n_engine_tokens:,} of {summary.n_logical:,} tokens computed "
            f"({summary.n_unique:,} unique)"
        )
    pairs = list(zip(found["off"], found["auto"], strict=True))
    ratio = statistics.median(off.elapsed_s / auto.elapsed_s for off, auto in pairs)
    cpu_ratio = statistics.median(off.cpu_s / auto.cpu_s for off, auto in pairs)
    print(f"  {name:10} off / auto {ratio:8.2f}   {cpu_ratio:37.2f} of processors", flush=True)


def _median_cpu(rounds: Sequence[Round]) -> float:
    return statistics.median(one.cpu_s for one in rounds)
