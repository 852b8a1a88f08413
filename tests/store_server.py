"""An S3 server on loopback, which says what it was asked for, and can go away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

KEY, SECRET = "AKIATESTTESTTEST", "verysecretverysecret"


class Request(NamedTuple):
    """What was asked for: method, path, query, the range of bytes, and how many bytes were sent back."""

    method: str
    path: str
    query: str
    range: str
    n_bytes: int


class StoreServer:
    def __init__(self) -> None:
        # The environment of vLLM goes without them.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: Any = None
        self._port = 0
        self.requests: list[Request] = []
        # Says for a request, by method and path with query, whether it fails.
        self.fails: Callable[[str, str], bool] = lambda _method, _path: False
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self._port, self._answer, threaded=True)
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @contextmanager
    def away(self, seconds: float) -> Iterator[None]:
        """Nobody answers from now on, for some seconds."""
        self.stop()
        timer = threading.Timer(seconds, self.start)
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def reset(self) -> None:
        """One empty bucket, and no failures."""
        import s3fs

        self.fails = lambda _method, _path: False
        s3fs.S3FileSystem.clear_instance_cache()
        urlopen(UrlRequest(f"{self.url}/moto-api/reset", method="POST")).close()
        urlopen(
            UrlRequest(f"{self.url}/bucket", method="PUT", headers={"Host": f"127.0.0.1:{self._port}"})
        ).close()
        self.requests.clear()

    def names(self) -> list[str]:
        """Of all that can be seen in the bucket."""
        from moto.backends import get_backend

        return sorted(get_backend("s3")["123456789012"]["aws"].buckets["bucket"].keys)

    def unfinished(self) -> int:
        """Uploads that were begun and neither completed nor given up."""
        from moto.backends import get_backend

        return len(get_backend("s3")["123456789012"]["aws"].buckets["bucket"].multiparts)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        if self.fails(method, f"{path}?{query}"):
            # As a proxy does, without the words of S3.
            start_response("403 Forbidden", [("Content-Length", "0"), ("Connection", "close")])
            return [b""]
        content = b"".join(self._app(environ, start_response))
        asked = environ.get("HTTP_RANGE", "")
        self.requests.append(Request(method, path, query, asked, len(content)))
        return [content]
