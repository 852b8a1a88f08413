"""A proxy that does to answers what networks, load balancers and servers in trouble do."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from time import sleep
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tests.scoring.engines.server.served import running

KINDS = ("delay", "drop", "truncate", "too many", "broken", "reorder", "garble", "other ids")


class Faults:
    """Which answers come to harm.

    Attributes:
        share: Of the answers, for each kind.
        always: A kind that all answers come to; None for chance.
        n: Harmed answers by kind; None counts those that were passed on as they were.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.always: str | None = None
        self.n: Counter[str | None] = Counter()
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._held: bytes | None = None

    def draw(self) -> tuple[str | None, float]:
        """A kind or None, and a place from 0 to 1."""
        with self._lock:
            drawn, place = self._rng.random(2)
            at = int(drawn / self.share) if self.share else len(KINDS)
            kind = self.always or (KINDS[at] if at < len(KINDS) else None)
            self.n[kind] += 1
            return kind, float(place)

    def exchange(self, body: bytes) -> bytes:
        """The answer to another request, of earlier; its own where it is the first."""
        with self._lock:
            other, self._held = self._held, body
        return body if other is None else other


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: str
    faults: Faults

    def _forwarded(self, method: str, body: bytes | None) -> tuple[int, bytes]:
        connection = HTTPConnection(urlsplit(self.upstream).netloc)
        try:
            connection.request(method, self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _send(self, status: int, body: bytes, n_announced: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if n_announced is None else n_announced))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._send(*self._forwarded("GET", None))

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        kind, place = self.faults.draw()
        if kind == "too many":
            return self._send(429, b"{}", Retry_After="0")
        if kind == "broken":
            return self._send(500, b"Internal Server Error")
        status, body = self._forwarded("POST", asked)
        at = int(place * len(body))
        if kind == "delay":
            sleep(0.2 * place)
        elif kind == "drop":
            self.close_connection = True
            return None
        elif kind == "truncate":
            self._send(status, body[:at], len(body))
            self.close_connection = True
            return None
        elif kind == "reorder":
            body = self.faults.exchange(body)
        elif kind == "garble":
            body = body[:at] + b"\x00<html>" + body[at + 7 :]
        elif kind == "other ids":
            answer = json.loads(body)
            rows = answer["choices"][0]["prompt_logprobs"]
            row = rows[1 + int(place * (len(rows) - 1))]
            name = next(iter(row))
            row[str(int(name) + 1)] = row.pop(name)
            body = json.dumps(answer).encode()
        return self._send(status, body)

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def proxy(upstream: str, faults: Faults) -> Iterator[str]:
    """The address of a proxy."""
    with running(_Proxy, upstream=upstream, faults=faults) as url:
        yield url
