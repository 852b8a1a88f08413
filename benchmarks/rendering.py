"""Time of attributed rendering, against plain `apply_chat_template(tokenize=True)`.

    python benchmarks/rendering.py --tokenizer DIR --template FILE
    python benchmarks/rendering.py --tokenizer DIR --template FILE --library tokenizers
    python benchmarks/rendering.py --tokenizer DIR --template FILE --megabytes 150

The first two print times and ratios of one run, medians of interleaved rounds; the third renders a file of
that size with all cores and prints how much memory the processes took (Linux). Where the package `renderers`
is installed, its generic renderer is timed too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.rendering import ChatTokenizer, Conversation, Renderer, open_source
from tokscore.rendering.attribution.settings import Verify
from tokscore.rendering.batches import render_many
from tokscore.rendering.executors.devices import all_cores
from tokscore.rendering.run import render_source
from tokscore.rendering.tokenizers.loading import load_tokenizer

BEYOND_THE_FIRST_TEN = 11  # of the first ten conversations of an input all ids are verified
TEXT = "".join(inspect.getsource(module) for module in (argparse, inspect, random, statistics))


def passage(rng: random.Random, length: int) -> str:
    """Some text of the standard library."""
    start = rng.randrange(len(TEXT) - length)
    return TEXT[start : start + length]


def agent_conversation(n_rounds: int, length: int = 2350) -> Conversation:
    """A conversation of 1 + 4 * n_rounds messages with reasoning and tools, of 1,950 tokens a round."""
    rng = random.Random(0)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful engineer."}]
    for i in range(n_rounds):
        call = {"name": "read_file", "arguments": {"path": passage(rng, 200), "line": i}}
        messages += [
            {"role": "user", "content": passage(rng, length)},
            {
                "role": "assistant",
                "content": passage(rng, length // 2),
                "reasoning_content": passage(rng, length // 2),
                "tool_calls": [{"id": f"call_{i}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{i}", "content": passage(rng, length)},
            {"role": "assistant", "content": passage(rng, length)},
        ]
    return Conversation(messages)


def short_conversations(n: int) -> list[Conversation]:
    """Conversations of four messages and about 300 tokens."""
    rng = random.Random(1)
    roles = ("user", "assistant", "user", "assistant")
    return [Conversation([{"role": role, "content": passage(rng, 320)} for role in roles]) for _ in range(n)]


class Took(NamedTuple):
    """Medians of one way to render, in seconds; `cpu_s` counts this process alone."""

    wall_s: float
    cpu_s: float


def interleaved(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, Took]:
    """Run each way once a round, so that all of them see the same noise."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, run in ways.items():
            before = time.perf_counter(), time.process_time()
            run()
            wall[name].append(time.perf_counter() - before[0])
            cpu[name].append(time.process_time() - before[1])
    return {name: Took(statistics.median(wall[name][1:]), statistics.median(cpu[name][1:])) for name in ways}


def print_times(title: str, times: dict[str, Took], n_units: int, baseline: str) -> None:
    """One line a way: wall and processor time, and both against the baseline."""
    print(f"\n{title}\n{'':44}{'wall ms':>10}{'ratio':>7}{'cpu ms':>10}{'ratio':>7}")
    base = times[baseline]
    for name, took in times.items():
        print(
            f"  {name:42}{took.wall_s / n_units * 1e3:10.2f}{took.wall_s / base.wall_s:7.2f}"
            f"{took.cpu_s / n_units * 1e3:10.2f}{took.cpu_s / base.cpu_s:7.2f}"
        )


class Setup:
    """One tokenizer with its template, and the ways to render with it."""

    def __init__(self, tokenizer: str, template: Path, library: str) -> None:
        self.tokenizer = ChatTokenizer(tokenizer, template=template.read_text("utf-8"), library=library)
        self.renderers = {verify: Renderer(self.tokenizer, verify=verify) for verify in Verify}
        self.folder = tokenizer
        self.as_new: dict[str, Any] = {}  # Any: a tokenizer of transformers

    def plain(self, name: str, conversations: Sequence[Conversation], *, tokenize: bool = True) -> None:
        """As transformers does it, by a tokenizer of its own: it remembers only the first words it meets."""
        if name not in self.as_new:
            self.as_new[name] = load_tokenizer(self.folder, None, trust_remote_code=False)
        for conversation in conversations:
            self.as_new[name].apply_chat_template(
                list(conversation.messages),
                chat_template=self.tokenizer.template,
                tokenize=tokenize,
                return_dict=False,
            )

    def alone(self, conversations: Sequence[Conversation]) -> None:
        """One after the other."""
        for conversation in conversations:
            self.renderers[Verify.OFF].render(conversation)

    def batched(self, conversations: Sequence[Conversation], verify: Verify = Verify.OFF) -> None:
        """In batches."""
        renderer = self.renderers[verify]
        for result in render_many(renderer, conversations, first_number=BEYOND_THE_FIRST_TEN):
            if isinstance(result, Exception):
                raise result


_SETUP: list[Setup] = []


def one_thread() -> None:
    """Let one thread make the tokens of a process, whatever the library."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"


def _start_worker(tokenizer: str, template: Path, library: str) -> None:
    one_thread()
    _SETUP.append(Setup(tokenizer, template, library))


def _render_in_worker(conversations: Sequence[Conversation]) -> None:
    _SETUP[0].batched(conversations)


def measure_times(arguments: argparse.Namespace) -> None:
    """Print the cost of conversations of both lengths, its growth, and the peer's."""
    one_thread()
    setup = Setup(arguments.tokenizer, arguments.template, arguments.library)
    print(f"ids by {setup.tokenizer.ids.made_by}")
    long, short = agent_conversation(60), short_conversations(400)
    cores = all_cores()
    with ProcessPoolExecutor(
        cores,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(arguments.tokenizer, arguments.template, arguments.library),
    ) as pool:

        def on_all_cores(conversations: list[Conversation]) -> None:
            list(pool.map(_render_in_worker, [conversations[i::cores] for i in range(cores)]))

        for name, conversations, n_units in (
            ("241 messages", [long] * 2 * cores, 2 * cores),
            ("short conversations", short, 1),
        ):
            n_tokens = sum(len(setup.renderers[Verify.OFF].render(each)) for each in conversations)
            ways: dict[str, Callable[[], object]] = {
                "plain": partial(setup.plain, name, conversations),
                # Default verification makes each text so once more, to compare with it.
                "  its text alone": partial(setup.plain, name, conversations, tokenize=False),
                "attributed, one by one": partial(setup.alone, conversations),
                "attributed, batches in one process": partial(setup.batched, conversations),
                "  with default verification": partial(setup.batched, conversations, Verify.SAMPLE),
                "  with full verification": partial(setup.batched, conversations, Verify.FULL),
                f"attributed, batches on {cores} cores": partial(on_all_cores, conversations),
            }
            times = interleaved(ways, arguments.rounds)
            title = f"{len(conversations)} x {name}, {n_tokens // len(conversations):,} tokens each"
            print_times(title, times, n_units, "plain")
    longer = agent_conversation(600)
    growth: dict[str, Callable[[], object]] = {
        "241 messages": lambda: setup.batched([long]),
        "2,401 messages": lambda: setup.batched([longer]),
    }
    print_times("growth", interleaved(growth, min(arguments.rounds, 3)), 1, "241 messages")
    measure_peer(setup, arguments.rounds)


def measure_peer(setup: Setup, rounds: int) -> None:
    """Print the cost of the generic renderer of the package `renderers`, where it is installed."""
    try:
        config = import_module("renderers.configs").DefaultRendererConfig()
        renderer = import_module("renderers.default").DefaultRenderer
    except ImportError as error:
        print(f"\nno peer: {error}")
        return
    setup.tokenizer.hf.chat_template = setup.tokenizer.template  # the peer takes no other
    peer = renderer(setup.tokenizer.hf, config)
    conversation = agent_conversation(15)
    ways: dict[str, Callable[[], object]] = {
        "attributed": lambda: setup.alone([conversation]),
        "renderers, generic": lambda: peer.render(list(conversation.messages)),
    }
    print_times("61 messages", interleaved(ways, min(rounds, 3)), 1, "attributed")


def write_conversations(path: Path, n_bytes: int) -> None:
    """A JSONL file of mixed conversations."""
    rng = random.Random(2)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < n_bytes:
            messages = [{"role": "system", "content": passage(rng, 500)}]
            for _ in range(rng.choice([1, 2, 3, 8, 40])):
                messages.append({"role": "user", "content": passage(rng, rng.randrange(50, 1500))})
                messages.append({"role": "assistant", "content": passage(rng, rng.randrange(50, 3000))})
            file.write(json.dumps({"messages": messages}) + "\n")


def proportional_mebibytes() -> float:
    """Memory of this process and its children, shared pages counted by share."""
    total = 0
    children = (child.pid for child in multiprocessing.active_children())
    for pid in (os.getpid(), *children):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
        except OSError:  # it has just ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def sampled_memory(stop: threading.Event) -> Iterator[float]:
    """The memory every second until `stop`."""
    while not stop.wait(1):
        yield proportional_mebibytes()


def measure_memory(arguments: argparse.Namespace) -> None:
    """Print speed and memory of a render run over a large file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversations.jsonl"
        write_conversations(path, arguments.megabytes * 2**20)
        source = open_source(
            [str(path)], arguments.tokenizer, template=arguments.template, tokenizer=arguments.library
        )
        stop = threading.Event()
        samples: list[float] = []
        watcher = threading.Thread(target=lambda: samples.extend(sampled_memory(stop)))
        watcher.start()
        before, cpu_before_s = time.perf_counter(), time.process_time()
        summary = render_source(source, Path(folder) / "out", workers=all_cores())
        elapsed_s = time.perf_counter() - before
        stop.set()
        watcher.join()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in usage) - cpu_before_s
    quarters = [samples[i * len(samples) // 4 : (i + 1) * len(samples) // 4] for i in range(4)]
    peaks = ", ".join(f"{max(quarter):,.0f}" for quarter in quarters if quarter)
    print(
        f"{arguments.megabytes} MiB, {summary.n_tokens:,} tokens on {all_cores()} cores: {elapsed_s:.0f} s, "
        f"{summary.n_tokens / elapsed_s:,.0f} tokens/s, {cpu_s:.0f} s of processor time, "
        f"ids by {summary.tokenizer}\n"
        f"proportional memory of all processes, peak MiB in each quarter of the run: {peaks}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", required=True, help="directory or hub id")
    parser.add_argument("--template", type=Path, required=True, help="chat template, such as Qwen3's")
    parser.add_argument("--library", choices=("fastokens", "tokenizers"), default="fastokens")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, help="measure memory on a file of this size instead")
    chosen = parser.parse_args()
    (measure_times if chosen.megabytes is None else measure_memory)(chosen)
