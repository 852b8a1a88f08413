"""Throughput of a served model against the same model in this process, and the memory of many requests.

    python benchmarks/servers.py --model DIR [--kind vllm] [--top-k 20]
    python benchmarks/servers.py --requests 10000

The first starts `vllm serve` on this machine and scores the same random prompts through it and with the vLLM
engine, one after the other, each after a warm-up, with the same dtype, batch tokens and sequences, neither
compiled. Prints tokens a second of both and their ratio. Both run on the same cores: here the server's client
takes some from it.

The second sends so many requests to a server that knows its answers, in a process of its own, and prints the
memory of this process on the way. Exits with 1 where it grows by more than a twentieth after the first tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from tokscore.scoring import Engine, TokenSequence, plan_engine

SEQUENCES, START_S = 128, 300.0
# Of the server that knows its answers: ids, candidates and tokens of a prompt.
N_IDS, N_LISTED, N_TOKENS = 64, 20, 64
MOST_GROWTH = 1.05


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """The address of a server, which is told its port."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)],
        stdout=sys.stderr,
        env=os.environ
        | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_KVCACHE_SPACE": "1"},
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
                    sys.exit("the server did not start; its messages are above.")
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


class KnownAnswers(BaseHTTPRequestHandler):
    """Logprobs of each id after each other one, in vLLM's words."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Say what it has."""
        self._send('{"data": [{"id": "known", "owned_by": "vllm", "max_model_len": 256}]}')

    def do_POST(self) -> None:
        """Answer with the logprobs of a prompt."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = asked["prompt"]
        rows = ",".join(row(*pair, asked["prompt_logprobs"]) for pair in pairwise(ids))
        self._send(f'{{"choices": [{{"prompt_token_ids": {ids}, "prompt_logprobs": [null,{rows}]}}]}}')

    def _send(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@cache
def row(before: int, token: int, top_k: int) -> str:
    """The candidates of one place."""
    logits = np.random.default_rng(before).normal(size=N_IDS).astype(np.float32)
    logprobs = logits - np.log(np.exp(logits).sum())
    order = np.argsort(-logprobs)
    ranks = np.argsort(order) + 1
    listed = dict.fromkeys([token, *order[:top_k].tolist()])
    return json.dumps(
        {i: {"logprob": float(logprobs[i]), "rank": int(ranks[i]), "decoded_token": " x"} for i in listed}
    )


def print_memory(n_requests: int) -> None:
    """Ask many times, and look at the memory of this process in tenths."""
    rng = np.random.default_rng(0)

    def prompts() -> Iterator[TokenSequence]:
        for key in range(n_requests):
            yield TokenSequence(key, rng.integers(0, N_IDS, N_TOKENS).astype(np.int32))

    with tempfile.TemporaryDirectory() as folder, started([__file__]) as url:
        Path(folder, "config.json").write_text(json.dumps({"vocab_size": N_IDS}))
        engine = plan_engine(folder, url=[url], server_kind="vllm", top_k=N_LISTED).start()
        began, sizes = time.perf_counter(), []
        for n_done, _ in enumerate(engine.score(prompts()), 1):
            if n_done % (n_requests // 10) == 0:
                sizes.append(
                    int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                )
                print(
                    f"{n_done:8,} requests  {sizes[-1] / 1e6:8.1f} MB  {time.perf_counter() - began:6.1f} s"
                )
        engine.close()
    if sizes[-1] > sizes[0] * MOST_GROWTH:
        sys.exit("memory grows with requests.")


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
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paths", nargs="*", default=["auto"], help="of the engine in this process")
    chosen = parser.parse_args()
    if chosen.port is not None:
        ThreadingHTTPServer(("127.0.0.1", chosen.port), KnownAnswers).serve_forever()
    if chosen.requests is not None:
        print_memory(chosen.requests)
        return
    if not chosen.model:
        parser.error("expected --model or --requests")
    rng = np.random.default_rng(0)
    vocab_size = json.loads(Path(chosen.model, "config.json").read_bytes())["vocab_size"]
    sequences = [
        TokenSequence(key, rng.integers(0, vocab_size, chosen.prompt_tokens).astype(np.int32))
        for key in range(chosen.prompts)
    ]
    found: dict[str, float] = {}
    length = chosen.prompt_tokens + 1
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", chosen.model, "--host", "127.0.0.1"]
    arguments += ["--enforce-eager", "--enable-scale-out", "--dtype", "float32"]
    arguments += ["--max-model-len", str(length), "--max-num-seqs", str(SEQUENCES)]
    arguments += ["--max-num-batched-tokens", str(chosen.batch_tokens), "--max-logprobs", str(chosen.top_k)]
    with started(arguments) as url:
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
