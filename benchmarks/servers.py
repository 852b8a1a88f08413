"""Throughput of a served model against the same model in this process.

    python benchmarks/servers.py --model DIR [--kind vllm] [--top-k 20]

Starts `vllm serve` on this machine and scores the same random prompts through it and with the vLLM engine,
one after the other, each after a warm-up, with the same dtype, batch tokens and sequences. Prints tokens a
second of both and their ratio. Both run on the same cores: here the server's client takes some from it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from tokscore.scoring import Engine, TokenSequence, plan_engine

SEQUENCES, START_S = 128, 300.0


@contextmanager
def served(model: str, arguments: list[str]) -> Iterator[str]:
    """The address of `vllm serve`."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *arguments]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdout=sys.stderr,
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        stop = time.monotonic() + START_S
        while True:
            try:
                urlopen(f"{url}/health", timeout=5).close()
                break
            except (URLError, OSError):
                if server.poll() is not None or time.monotonic() > stop:
                    sys.exit("vllm serve did not start; its messages are above.")
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def rate(engine: Engine, sequences: list[TokenSequence], rounds: int) -> list[float]:
    """Tokens a second of each round, after a warm-up."""
    n_tokens = sum(len(sequence.token_ids) for sequence in sequences)
    found = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        assert len(dict(engine.score(sequences))) == len(sequences)
        found.append(n_tokens / (time.perf_counter() - started))
    return found[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paths", nargs="*", default=["auto"], help="of the engine in this process")
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    vocab_size = json.loads(Path(chosen.model, "config.json").read_bytes())["vocab_size"]
    sequences = [
        TokenSequence(key, rng.integers(0, vocab_size, chosen.prompt_tokens).astype(np.int32))
        for key in range(chosen.prompts)
    ]
    found: dict[str, float] = {}
    length = chosen.prompt_tokens + 1
    arguments = ["--dtype", "float32", "--max-model-len", str(length), "--max-num-seqs", str(SEQUENCES)]
    arguments += ["--max-num-batched-tokens", str(chosen.batch_tokens), "--max-logprobs", str(chosen.top_k)]
    with served(chosen.model, arguments) as url:
        engine = plan_engine(chosen.model, url=[url], server_kind=chosen.kind, top_k=chosen.top_k).start()
        found["server"] = statistics.median(rate(engine, sequences, chosen.rounds))
        engine.close()
    for path in chosen.paths:
        engine = plan_engine(
            chosen.model,
            engine="vllm",
            dtype="float32",
            top_k=chosen.top_k,
            engine_path=path,
            batch_tokens=chosen.batch_tokens,
        ).start(length)
        name = f"vllm {engine.details.get('path', path)}"
        found[name] = statistics.median(rate(engine, sequences, chosen.rounds))
        engine.close()
    for name, tokens_per_s in found.items():
        print(f"{name:16} {tokens_per_s:8,.0f} tokens/s  server/it {found['server'] / tokens_per_s:.2f}")


if __name__ == "__main__":
    main()
