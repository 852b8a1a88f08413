"""A small HTTP server that answers as vLLM, SGLang and echoing completions are documented to.

It can be told to do one thing wrong.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from tests.scoring.samples import VOCAB_SIZE

# Ids [n] to float32 logprobs [n, vocab] of what follows each.
Model = Callable[[list[int]], np.ndarray]


_TABLE = np.random.default_rng(5).normal(0, 2, (2 * VOCAB_SIZE, VOCAB_SIZE))


def by_last_two(ids: list[int]) -> np.ndarray:
    """A model whose logprobs depend on the last two ids."""
    seen = np.array([0, *ids])
    logits = _TABLE[seen[1:]] + _TABLE[VOCAB_SIZE + seen[:-1]]
    return (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)


def load(path: Path) -> Model:
    """A model of transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    lock = threading.Lock()

    def logprobs(ids: list[int]) -> np.ndarray:
        with lock, torch.inference_mode():
            return network(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()

    return logprobs


class Served:
    """What a server has, and what it does wrong.

    Attributes:
        kind: Dialect.
        lie: What it does wrong; empty for nothing.
        key: That requests must bring; None for none.
        n_requests: Requests for logprobs so far.
        die_after: Requests after which it answers none.
        prompts: Those asked for, in order.
        starts: First row asked for, of each.
    """

    def __init__(self, model: Model, kind: str, lie: str = "", **changes: Any) -> None:
        self.model = model
        self.kind = kind
        self.lie = lie
        self.key: str | None = None
        self.names = ["tiny"]
        self.root: str | None = None
        self.tokenizer: str | None = None
        self.max_model_len = 1_024
        self.max_logprobs = 1_000
        self.die_after: int | None = None
        self.status_elsewhere = 404
        self.version = "1.2.3"
        self.n_requests = self.n_running = self.most_running = 0
        self.prompts: list[list[int]] = []
        self.starts: list[int] = []
        self.seen: set[tuple[int, ...]] = set()
        self.lock = threading.Lock()
        self.rng = np.random.default_rng(0)
        for name, value in changes.items():
            assert hasattr(self, name)
            setattr(self, name, value)

    def rows(self, prompt: list[int], temperature: float, penalty: float) -> tuple[list[int], np.ndarray]:
        """The ids that are scored, and float32 [n, vocab] of which row t is about token t + 1."""
        ids = [0, *prompt] if self.lie in ("bos", "hidden bos") else prompt
        found = self.model(ids).astype(np.float64)
        if self.lie == "temperature":
            found = found / (temperature or 1)
        if self.lie == "penalty":
            was_there = np.tri(len(ids), dtype=bool)[:, :, None] & (
                np.array(ids)[None, :, None] == np.arange(found.shape[1])
            )
            found = np.where(was_there.any(1), found * penalty, found)
        if self.lie == "noise":
            found = found + self.rng.normal(0, 3, found.shape)
        if self.lie == "company":
            # Until what was sent at the same time is there.
            sleep(0.1)
        if self.lie == "company" and self.n_running > 1:
            found = np.roll(found, 1, axis=1)
        if self.lie == "stale":
            known = [n for n in range(1, len(ids)) if tuple(ids[:n]) in self.seen]
            if known and known[-1] < len(ids) - 1:
                found[known[-1] - 1] = np.roll(found[known[-1] - 1], 7)
            self.seen |= {tuple(ids[:n]) for n in range(1, len(ids) + 1)}
        found = found - np.log(np.exp(found).sum(1, keepdims=True))
        found = found.astype(np.float32)
        if self.lie == "round":
            found = np.round(found.astype(np.float64), 4)
        if self.lie == "16 bits":
            found = found.astype(np.float16).astype(np.float32)
        if self.lie == "other ids":
            ids = [*ids[:-1], (ids[-1] + 1) % found.shape[1]]
        return ids, found

    def lists(self, row: np.ndarray, top_k: int) -> list[int]:
        order = np.argsort(-row, kind="stable")[: top_k - 2 if self.lie == "cut" and top_k > 2 else top_k]
        return (order[::-1] if self.lie == "order" else order).tolist()

    def prompt_logprobs(self, ids: list[int], found: np.ndarray, top_k: int) -> list[Any]:
        """vLLM's."""
        result: list[Any] = [None]
        for token, row in zip(ids[1:], found, strict=False):
            named = dict.fromkeys([token, *self.lists(row, top_k)])
            result.append(
                {
                    str(i): {
                        "logprob": max(float(row[i]), -9999.0),
                        "rank": int((row >= row[i]).sum()),
                        "decoded_token": f'"{i}" {{\\n',
                    }
                    for i in named
                }
            )
        if self.lie == "hidden bos":
            result = result[1:]
        if self.lie == "few rows":
            key = tuple(ids[:4])
            result = result[:1] + result[5:] if key in self.seen else result
            self.seen.add(key)
        return result

    def answer(self, path: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer."""
        paths = {"vllm": "/v1/completions", "vllm-tokens": "/inference/v1/generate", "sglang": "/generate"}
        if self.kind == "nothing" or path != paths.get(self.kind, "/v1/completions"):
            return self.status_elsewhere, {"detail": "Not here"}
        return getattr(self, f"_{self.kind.replace('-', '_').partition(' ')[0]}")(asked)

    def _scored(self, prompt: list[int], asked: dict[str, Any]) -> tuple[list[int], np.ndarray]:
        self.prompts.append(prompt)
        return self.rows(prompt, asked.get("temperature", 1.0), asked.get("repetition_penalty", 1.0))

    def _vllm(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if asked["prompt_logprobs"] > self.max_logprobs:
            return 400, {
                "error": {
                    "message": f"Requested prompt logprobs of {asked['prompt_logprobs']}, which is greater than max allowed: {self.max_logprobs}"
                }
            }
        ids, found = self._scored(asked["prompt"], asked)
        choice = {
            "index": 0,
            "text": "x",
            "prompt_logprobs": self.prompt_logprobs(ids, found, asked["prompt_logprobs"]),
            "prompt_token_ids": asked["prompt"] if self.lie == "hidden bos" else ids,
        }
        return 200, {"id": "cmpl-1", "choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def _vllm_tokens(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        sampling = asked["sampling_params"]
        ids, found = self._scored(asked["token_ids"], sampling)
        rows = self.prompt_logprobs(ids, found, sampling["prompt_logprobs"])
        return 200, {"request_id": "1", "choices": [{"index": 0, "token_ids": [1]}], "prompt_logprobs": rows}

    def _sglang(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        start, top_k = asked["logprob_start_len"], asked["top_logprobs_num"]
        self.starts.append(start)
        ids, found = self._scored(asked["input_ids"], asked["sampling_params"])
        first = [[None, ids[start], None]]
        pairs = [*zip(ids[1:], found, strict=False)][start:]
        about: dict[str, Any] = {
            "id": "1",
            "prompt_tokens": len(ids),
            "input_token_logprobs": first + [[float(row[token]), token, None] for token, row in pairs],
        }
        if top_k:
            about["input_top_logprobs"] = [
                None,
                *([[float(row[i]), i, None] for i in self.lists(row, top_k)] for _, row in pairs),
            ]
        if self.lie == "few rows":
            about["input_token_logprobs"] = about["input_token_logprobs"][:-3]
        return 200, {"text": "", "output_ids": [], "meta_info": about}

    def _echo(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "logprobs" not in asked:
            return 200, {"choices": [{"text": "", "logprobs": None}]}
        if asked["logprobs"] > self.max_logprobs:
            return 400, {"error": {"message": f"logprobs must be at most {self.max_logprobs}"}}
        ids, found = self._scored(asked["prompt"], asked)
        with_ids = asked.get("return_tokens_as_token_ids") and self.kind != "echo of texts"
        ids = [*ids, 7]

        def name(i: int) -> str:
            return f"token_id:{i}" if with_ids else f" t{i % 5}"

        logprobs = [None, *(float(row[token]) for token, row in zip(ids[1:], found, strict=True))]
        tops = [None]
        for token, row in zip(ids[1:], found, strict=True):
            listed = dict.fromkeys([token, *self.lists(row, asked["logprobs"])])
            tops.append({name(i): float(row[i]) for i in listed})
        choice = {
            "text": "",
            "logprobs": {"tokens": [name(i) for i in ids], "token_logprobs": logprobs, "top_logprobs": tops},
        }
        usage = {"prompt_tokens": len(ids) - 1, "completion_tokens": 1}
        return 200, {"choices": [choice], "usage": usage}

    def about(self, path: str) -> tuple[int, dict[str, Any]]:
        """What it says of itself."""
        if path == "/v1/models" and self.kind != "echo of texts":
            owner = self.kind.partition("-")[0]
            models = [
                {"id": name, "root": self.root, "owned_by": owner, "max_model_len": self.max_model_len}
                for name in self.names
            ]
            return 200, {"object": "list", "data": models}
        if path == "/tokenizer_info" and self.tokenizer is not None:
            return 200, {"tokenizer_class": "X", "name_or_path": self.tokenizer}
        if path == "/version" and self.kind.startswith("vllm"):
            return 200, {"version": self.version}
        if path == "/get_server_info" and self.kind == "sglang":
            return 200, {"version": self.version}
        if path == "/get_model_info" and self.kind == "sglang":
            return 200, {"model_path": "/models/tiny"}
        return 404, {"detail": "Not Found"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served
    statuses: Counter[int]

    def _send(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_allowed(self) -> bool:
        key = self.served.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._send(401, {"error": f"Incorrect API key provided: {self.headers.get('Authorization')}"})
        return False

    def do_GET(self) -> None:
        if self._is_allowed():
            self._send(*self.served.about(self.path))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        served = self.served
        if not self._is_allowed():
            return
        with served.lock:
            served.n_requests += 1
            if served.die_after is not None and served.n_requests > served.die_after:
                self.close_connection = True
                return
            served.n_running += 1
            served.most_running = max(served.most_running, served.n_running)
        try:
            answer = served.answer(self.path, asked)
        finally:
            with served.lock:
                served.n_running -= 1
        self._send(*answer)

    def log_message(self, *_arguments: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_arguments: Any) -> None:
        """A client may go away."""


@contextmanager
def running(handler: type[BaseHTTPRequestHandler], **attributes: Any) -> Iterator[str]:
    """The address of a server with this handler."""
    server = _Server(("127.0.0.1", 0), type("Handler", (handler,), attributes))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """The address of a server."""
    with running(_Handler, served=served) as url:
        yield url
