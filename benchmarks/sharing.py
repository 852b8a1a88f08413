"""Time and memory of counting, sharing and scoring the tokens of branches.

    python benchmarks/sharing.py --tokenizer DIR --template FILE
    python benchmarks/sharing.py --model DIR

Prints times, ratios and sizes of one run, medians of interleaved rounds: token counts of a trajectory of 10
branches against rebuilding the branches for each count; the memory of the tree of shared tokens; and the time
to make it for 10 million tokens, against rendering as many.

With a model: 16 samples of 400 tokens behind a prompt of 1,600, and sequences that have nothing in common,
scored with `--sharing auto` and `off`.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scored_groups import measure_scoring

from tokscore.analytics.trajectories.counts import InputOutputCounts, branch_counts
from tokscore.rendering import ChatTokenizer, Conversation, Renderer
from tokscore.rendering.batches import render_many
from tokscore.rendering.conversations.prefix_tree import share
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace

BEYOND_THE_FIRST_TEN = 11  # of the first ten conversations of an input all ids are verified
N_BRANCHES = 10
N_TRUNK_NODES = 200
N_BRANCH_NODES = 180
N_NODE_TOKENS = 128
GROUP_SIZE = 8
VOCABULARY = 151_936
TEXT = "".join(inspect.getsource(module) for module in (argparse, inspect, random, statistics))


def branched_trajectory() -> list[Node]:
    """2,000 nodes of 128 tokens: a trunk of 200 and ten branches of 180, answers and tool results in turn."""
    rng = np.random.default_rng(0)
    parents = [i - 1 for i in range(N_TRUNK_NODES)]
    for _ in range(N_BRANCHES):
        first = len(parents)
        parents += [N_TRUNK_NODES - 1, *range(first, first + N_BRANCH_NODES - 1)]
    nodes = []
    for i, parent in enumerate(parents):
        is_sampled = i % 2 == 1
        mask = np.full(N_NODE_TOKENS, is_sampled, np.int8)
        mask[:4] = 0  # the header
        tokens = NodeTokens(rng.integers(0, VOCABULARY, N_NODE_TOKENS, np.int32), mask)
        role = "assistant" if is_sampled else "tool"
        nodes.append(Node(parent, ({"role": role},), is_sampled, tokens))
    return nodes


def rebuilt_masks(nodes: Sequence[Node]) -> Iterator[NDArray[np.int8]]:
    """The mask of every branch, put together on the way from its leaf to the root."""
    parents = {node.parent for node in nodes}
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        parts, at = [], leaf
        while at != NO_PARENT:
            tokens = nodes[at].tokens
            assert tokens is not None
            parts.append(tokens.sampled_mask)
            at = nodes[at].parent
        yield np.concatenate(parts[::-1])


def rebuilt_counts(nodes: Sequence[Node]) -> list[InputOutputCounts]:
    """The counts of every branch, rebuilt for each of the three."""
    n_input = [int((mask != 1).sum()) for mask in rebuilt_masks(nodes)]
    n_output = [int((mask == 1).sum()) for mask in rebuilt_masks(nodes)]
    n_total = [len(mask) for mask in rebuilt_masks(nodes)]
    return list(map(InputOutputCounts, n_input, n_output, n_total))


def token_groups(n_tokens: int) -> list[NDArray[np.int32]]:
    """Groups of 8 branches with 500 ids or more each, in any order; half or more of them in common."""
    rng = np.random.default_rng(1)
    sequences: list[NDArray[np.int32]] = []
    while n_tokens > 0:
        trunk = rng.integers(0, VOCABULARY, rng.integers(400, 1200), np.int32)
        answers = [rng.integers(0, VOCABULARY, rng.integers(100, 400), np.int32) for _ in range(GROUP_SIZE)]
        group = [np.concatenate([trunk, answer]) for answer in answers]
        n_tokens -= sum(map(len, group))
        sequences += group
    return [sequences[i] for i in rng.permutation(len(sequences))]


def sample_conversations(n: int) -> list[Conversation]:
    """Conversations of four messages and about 900 tokens."""
    rng = random.Random(2)
    roles = ("user", "assistant", "user", "assistant")

    def passage(length: int) -> str:
        start = rng.randrange(len(TEXT) - length)
        return TEXT[start : start + length]

    return [Conversation([{"role": role, "content": passage(960)} for role in roles]) for _ in range(n)]


def interleaved(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, run once a round, so that all of them see the same noise."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, run in ways.items():
            before = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - before)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def measure_counting(rounds: int) -> None:
    """Print what the counts of all branches cost, both ways."""
    nodes = branched_trajectory()
    assert branch_counts(Trace(nodes)) == rebuilt_counts(nodes)
    times = interleaved(
        {"rebuilt": lambda: rebuilt_counts(nodes), "counted once": lambda: branch_counts(Trace(nodes))},
        rounds,
    )
    print(f"input, output and total of {N_BRANCHES} branches, {len(nodes):,} nodes of {N_NODE_TOKENS} tokens")
    print(f"  branches rebuilt for each count  {times['rebuilt'] * 1e3:8.2f} ms")
    print(f"  counted once                     {times['counted once'] * 1e3:8.2f} ms")
    print(f"  ratio                            {times['rebuilt'] / times['counted once']:8.1f}")


def measure_sharing(arguments: argparse.Namespace) -> None:
    """Print the size of the tree, and what it costs to make against rendering its tokens."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # in one process, tokens are made by one thread
    tokenizer = ChatTokenizer(arguments.tokenizer, template=arguments.template.read_text("utf-8"))
    renderer = Renderer(tokenizer)
    conversations = sample_conversations(256)

    def rendered() -> int:
        n_tokens = 0
        for result in render_many(renderer, conversations, first_number=BEYOND_THE_FIRST_TEN):
            if isinstance(result, Exception):
                raise result
            n_tokens += len(result)
        return n_tokens

    sequences = token_groups(arguments.tokens)
    shared = share(sequences)
    n_rendered = rendered()
    times = interleaved({"render": rendered, "share": lambda: share(sequences)}, arguments.rounds)
    render_s = times["render"] / n_rendered * shared.n_logical
    print(
        f"\n{len(sequences):,} sequences in groups of {GROUP_SIZE}, {shared.n_logical:,} tokens, "
        f"{shared.n_unique:,} unique, {shared.ratio:.2f} for each\n"
        f"  tree, bytes a unique token       {shared.size_bytes / shared.n_unique:8.2f}\n"
        f"  rendered, by {n_rendered:,} tokens      {render_s:8.2f} s\n"
        f"  shared                           {times['share']:8.2f} s\n"
        f"  ratio                            {render_s / times['share']:8.1f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tokenizer", help="directory or hub id")
    which.add_argument("--model", help="directory; scores with it")
    parser.add_argument("--template", type=Path, help="chat template, such as Qwen3's; with --tokenizer")
    parser.add_argument("--engines", default="vllm,transformers", help="with --model")
    parser.add_argument("--dtype", default="float32", help="with --model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="tokens to share")
    chosen = parser.parse_args()
    if chosen.model:
        measure_scoring(chosen.model, chosen.engines.split(","), chosen.dtype, chosen.rounds)
    else:
        if chosen.template is None:
            parser.error("--tokenizer needs --template")
        measure_counting(chosen.rounds)
        measure_sharing(chosen)
