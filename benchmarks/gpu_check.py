"""Everything that tokscore does on a CUDA device, in one command of under six minutes.

    python benchmarks/gpu_check.py [--model DIR] [--rehearse]

Made-up weights of Qwen3's shape at 0.6B parameters are scored, each job in a process of its own:

kernel      the Triton kernel against float64, float32 and bf16, several widths
reference   transformers in bf16 and in float32
V1, V2      vLLM's two model runners, head in bf16 and in float32: the path in use, and the distance from
            transformers; V2 also scores a tree with its trunk shared and whole, and watches memory
raw, engine vLLM reading prompts only, and tokscore scoring them, beside the ideal N / (N + V·d)

One table says what was found and what was expected; the exit code is 1 where a number falls short or a job
failed. --rehearse runs a tiny model on whatever device is there and judges nothing that tells of speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scoring import DUMMY_CONFIG, Settings, ideal_ratio, measure_apart, prompts, with_rates

if TYPE_CHECKING:
    from tokscore.scoring import Engine, SequenceScores, TokenSequence

SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": 1_003,
}
# So that the distributions of made-up weights have some likely ids.
HEAD_STD = 0.12
HEADS = ("model", "float32")
TOP_K = 20
# Mean and largest distance of logprobs from transformers' in bf16, in nats.
MEAN_MOVE, MAX_MOVE = 0.05, 1.0
LEAST_OF_IDEAL = 0.9
LEAST_SPEEDUP = 3.0
MOST_MEMORY = 0.97
JOB_TIMEOUT_S = 150


class Check(NamedTuple):
    """A line of the table.

    Attributes:
        name: What is looked at.
        found: The number, or what it is.
        expected: In words.
        is_right: None where it is only shown.
    """

    name: str
    found: str
    expected: str
    is_right: bool | None


def main() -> int:
    """Run the jobs and print the table; 1 where something falls short, 2 without a device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="model directory in place of made-up weights")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on any device")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        found = JOBS[chosen.job.partition(" ")[0]](chosen.model, chosen.folder, chosen.job, chosen.rehearse)
        (chosen.folder / f"{chosen.job}.json").write_text(json.dumps(found))
        return 0
    device = device_name()
    if device is None and not chosen.rehearse:
        print("there is no CUDA device", file=sys.stderr)
        return 2
    started = perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = chosen.model or make_model(folder / "model", is_tiny=chosen.rehearse)
        runners = ("V1", "V2") if device else ("V1",)
        jobs = [*(["kernel"] if device else []), "reference"]
        jobs += [f"{runner} {head}" for runner in runners for head in HEADS]
        checks: list[Check] = []
        for job in jobs:
            checks += run_job(job, model, folder, is_rehearsal=chosen.rehearse)
        checks += throughput(model, is_rehearsal=chosen.rehearse)
    print_table(checks, device or "no CUDA device", perf_counter() - started)
    return int(any(check.is_right is False for check in checks))


def device_name() -> str | None:
    """Name of the first CUDA device, without making a context on it."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.splitlines()[0] if found else None


def make_model(folder: Path, *, is_tiny: bool) -> Path:
    """Made-up weights in bf16, their head untied."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    config = DUMMY_CONFIG | (TINY if is_tiny else SIZES) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    with torch.no_grad():
        network.lm_head.weight.normal_(0, HEAD_STD * (SIZES["hidden_size"] / config["hidden_size"]) ** 0.5)
    network.save_pretrained(folder)
    return folder


def run_job(job: str, model: Path, folder: Path, *, is_rehearsal: bool) -> list[Check]:
    """The checks of a job in a process of its own; one that says what went wrong where it failed."""
    print(f"{job} ...", file=sys.stderr, flush=True)
    environment = dict(os.environ)
    if job.startswith("V"):
        environment["VLLM_USE_V2_MODEL_RUNNER"] = str(int(job.startswith("V2")))
    command = [sys.executable, __file__, "--job", job, "--model", str(model), "--folder", str(folder)]
    command += ["--rehearse"] if is_rehearsal else []
    try:
        finished = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Check(job, f"took longer than {JOB_TIMEOUT_S} s", "to end", is_right=False)]
    result = folder / f"{job}.json"
    if not result.is_file():
        sys.stderr.write(finished.stdout[-4_000:])
        last = (finished.stdout.strip().splitlines() or ["no output"])[-1]
        return [Check(job, last[:100], "to end", is_right=False)]
    return [Check(*check) for check in json.loads(result.read_text())]


def check_kernel(_model: Path, _folder: Path, _job: str, _is_rehearsal: bool) -> list[Check]:
    """The kernel where it will run, on rows of known logits."""
    import torch

    from tokscore.scoring.engines.vllm.worker.fused_check import check_fused_pass

    checks = []
    for dtype in (torch.float32, torch.bfloat16):
        for vocab_size in (1_000, 32_003, 151_936, 262_144):
            found = "equal"
            try:
                for top_k in (0, 1, 20, 200):
                    for temperature in (1.0, 0.7):
                        check_fused_pass(torch.device("cuda"), dtype, vocab_size, top_k, temperature)
            except RuntimeError as error:
                found = str(error)
            name = f"kernel, {str(dtype).removeprefix('torch.')}, {vocab_size:,} ids"
            checks.append(Check(name, found, "equal to float64", found == "equal"))
    return checks


def sequences(model: Path, n: int, longest: int) -> list[TokenSequence]:
    """Random ids."""
    from tokscore.scoring import TokenSequence

    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    rng = np.random.default_rng(0)
    lengths = rng.integers(longest // 4, longest, n)
    return [
        TokenSequence(key, rng.integers(0, vocab_size, length).astype(np.int32))
        for key, length in enumerate(lengths)
    ]


def start(model: Path, engine: str, longest: int, *, shares: bool = False, **settings: Any) -> Engine:
    """An engine; settings as of `plan_engine`."""
    from dataclasses import replace

    from tokscore.scoring import plan_engine

    spec = plan_engine(str(model), engine=engine, top_k=TOP_K, **settings)
    return replace(spec, shares=shares).start(longest)


def measure_reference(model: Path, folder: Path, _job: str, is_rehearsal: bool) -> list[Check]:
    """Keep what transformers makes in both types."""
    wanted = sequences(model, 16, 120 if is_rehearsal else 600)
    for dtype in ("bfloat16", "float32"):
        engine = start(model, "transformers", 1_024, dtype=dtype)
        scores = dict(engine.score(wanted))
        np.savez(folder / f"{dtype}.npz", *(scores[key].logprobs for key in range(len(wanted))))
        engine.close()
    return []


def check_runner(model: Path, folder: Path, job: str, is_rehearsal: bool) -> list[Check]:
    """One of vLLM's runners with one type of head; sharing and memory with the last of them."""
    runner, head = job.split()
    n_trunk = 200 if is_rehearsal else 4_000
    shares = head == HEADS[-1]
    with watched_memory() as memory:
        engine = start(
            model,
            "vllm",
            n_trunk + 120,
            shares=shares,
            dtype="bfloat16",
            head_dtype=head,
            engine_arg={"enforce_eager": True},
        )
        details = engine.details
        is_used = (details.get("path"), details.get("runner"), details.get("head_dtype"))
        expected = ("fused", runner, "float32" if head == "float32" else "bfloat16")
        checks = [
            Check(
                f"{job}: path, runner, head",
                ", ".join(map(str, is_used)),
                ", ".join(expected),
                is_used == expected,
            )
        ]
        scores = dict(engine.score(sequences(model, 16, 120 if is_rehearsal else 600)))
        for dtype in ("bfloat16", "float32"):
            with np.load(folder / f"{dtype}.npz") as arrays:
                reference = [arrays[name] for name in arrays.files]
            moves = np.concatenate(
                [np.abs(scores[key].logprobs - each) for key, each in enumerate(reference)]
            )
            is_near = bool(moves.mean() <= MEAN_MOVE and moves.max() <= MAX_MOVE)
            checks.append(
                Check(
                    f"{job}: from transformers in {dtype}",
                    f"mean {moves.mean():.4f}, at most {moves.max():.3f} nats",
                    f"mean {MEAN_MOVE}, at most {MAX_MOVE:g}",
                    is_near,
                )
            )
        if shares:
            checks += check_sharing(engine, model, n_trunk, job, is_rehearsal=is_rehearsal)
        engine.close()
    if memory.get("total"):
        share = memory["peak"] / memory["total"]
        found = f"{memory['peak'] / 1024:.1f} of {memory['total'] / 1024:.1f} GiB"
        checks.append(Check(f"{job}: peak memory", found, f"at most {MOST_MEMORY:.0%}", share <= MOST_MEMORY))
    return checks


def check_sharing(engine: Engine, model: Path, n_trunk: int, job: str, *, is_rehearsal: bool) -> list[Check]:
    """32 branches behind a trunk, with the trunk computed once and for each of them."""
    from tokscore.scoring import TokenSequence
    from tokscore.scoring.sharing.segments import token_counts

    checks = [Check(f"{job}: sharing", str(engine.details.get("sharing")), "yes", engine.shares)]
    if not engine.shares:
        return checks
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    rng = np.random.default_rng(1)
    trunk = rng.integers(0, vocab_size, n_trunk)
    tree = [
        TokenSequence(key, np.concatenate([trunk, rng.integers(0, vocab_size, 100)]).astype(np.int32))
        for key in range(32)
    ]
    score_tree(engine, tree[:4])
    started = perf_counter()
    whole = dict(engine.score(tree))
    whole_s, before, started = perf_counter() - started, engine.n_computed, perf_counter()
    shared = score_tree(engine, tree)
    shared_s = perf_counter() - started
    n_computed = engine.n_computed - before
    moves = np.concatenate([np.abs(shared[key].logprobs - each.logprobs) for key, each in whole.items()])
    counts = token_counts([each.token_ids for each in tree])
    block = 32
    most = counts.n_unique + block * len(tree)
    speedup = whole_s / shared_s
    return [
        *checks,
        Check(
            f"{job}: tree, shared against whole",
            f"mean {moves.mean():.4f}, at most {moves.max():.3f} nats",
            f"mean {MEAN_MOVE}, at most {MAX_MOVE:g}",
            bool(moves.mean() <= MEAN_MOVE and moves.max() <= MAX_MOVE),
        ),
        Check(
            f"{job}: tokens computed",
            f"{n_computed:,} of {counts.n_logical:,}",
            f"at most {most:,}",
            n_computed <= most,
        ),
        Check(f"{job}: scored again", str(engine.n_rescored), "0", engine.n_rescored == 0),
        Check(
            f"{job}: tree, {shared_s:.3f} s for {whole_s:.3f} s",
            f"{speedup:.1f} times as fast",
            f"at least {LEAST_SPEEDUP:g}",
            None if is_rehearsal else speedup >= LEAST_SPEEDUP,
        ),
    ]


def score_tree(engine: Engine, tree: Sequence[TokenSequence]) -> Mapping[int, SequenceScores]:
    """Rows of every sequence, each made once."""
    from tokscore.scoring.sharing.segments import SegmentPlan

    plan = SegmentPlan(tree)
    found: dict[int, SequenceScores] = {}
    for key, scores in engine.score(plan.sequences):
        found |= dict(plan.add(key, scores))
    return found


@contextmanager
def watched_memory() -> Iterator[dict[str, float]]:
    """The device's most memory in use meanwhile and its total, in MiB; empty without a device."""
    memory: dict[str, float] = {}
    is_over = threading.Event()
    command = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]

    def watch() -> None:
        while not is_over.is_set():
            try:
                text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            except (OSError, subprocess.CalledProcessError):
                return
            used, total = map(float, text.splitlines()[0].split(","))
            memory["peak"], memory["total"] = max(memory.get("peak", 0.0), used), total
            sleep(0.2)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        is_over.set()
        thread.join()


def throughput(model: Path, *, is_rehearsal: bool) -> list[Check]:
    """Scoring beside raw prefill."""
    settings = Settings(
        model=str(model),
        is_dummy=False,
        dtype="bfloat16",
        top_k=TOP_K,
        repeats=2,
        n_prompts=12 if is_rehearsal else 192,
        min_length=64,
        max_length=200 if is_rehearsal else 4_000,
        seed=0,
        batch_tokens=None,
    )
    n_tokens = sum(map(len, prompts(settings)))
    rates, checks = {}, []
    for way in ("raw", "engine"):
        print(f"{way} ...", file=sys.stderr, flush=True)
        found = with_rates(measure_apart(way, settings, JOB_TIMEOUT_S), n_tokens)
        if "error" in found:
            checks.append(Check(way, found["error"][:100], "to end", is_right=False))
        else:
            rates[way] = found["tokens_per_s"]
            checks.append(Check(way, f"{rates[way]:,.0f} tokens/s", "", None))
    if len(rates) == 2:
        ideal, _, _ = ideal_ratio(str(model))
        ratio = rates["engine"] / rates["raw"]
        is_right = None if is_rehearsal else ratio >= LEAST_OF_IDEAL * ideal
        expected = f"at least {LEAST_OF_IDEAL * ideal:.2f}, {LEAST_OF_IDEAL:g} of the ideal {ideal:.2f}"
        checks.append(Check("engine, of raw", f"{ratio:.2f}", expected, is_right))
    return checks


JOBS = {"kernel": check_kernel, "reference": measure_reference, "V1": check_runner, "V2": check_runner}


def print_table(checks: Sequence[Check], device: str, elapsed_s: float) -> None:
    """One line a check."""
    marks = {True: "ok", False: "FALLS SHORT", None: "-"}
    widths = [max(len(check[column]) for check in checks) for column in range(3)]
    print(f"{device}, {elapsed_s:.0f} s")
    for check in checks:
        cells = (f"{check[column]:{widths[column]}}" for column in range(3))
        print("  ".join([*cells, marks[check.is_right]]).rstrip())


if __name__ == "__main__":
    sys.exit(main())
