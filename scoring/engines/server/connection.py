"""Requests to one server, over HTTP; tries that failed are made again by `tries.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tokscore.dataset.errors import EngineError, foreign
from tokscore.scoring.engines.server.addresses import KEY_VARIABLE, base_of, key, without_key

if TYPE_CHECKING:
    import httpx2

Result = TypeVar("Result")

# Of a server's words about an error.
SHOWN_CHARACTERS = 300
TOO_MANY = 429


class FailedTryError(Exception):
    """A try that may succeed later.

    Attributes:
        reason: What happened.
        is_refusal: Whether the server said that it has too much to do.
        wait_s: Seconds that it asks to wait; None where it does not say.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_refusal = is_refusal
        self.wait_s = wait_s


class RefusedError(EngineError):
    """An answer of 4xx: asking again brings the same.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Connection:
    """One server.

    Attributes:
        url: Its address, for messages.
    """

    def __init__(self, url: str, concurrency: int, timeout_s: float) -> None:
        """Connect when first asked.

        Args:
            url: The address.
            concurrency: Requests at once, at most.
            timeout_s: Seconds for one answer.
        """
        import httpx2

        self.url = url
        secret = key()
        self._client = httpx2.AsyncClient(
            base_url=base_of(url),
            http2=True,
            headers={"Authorization": f"Bearer {secret}"} if secret else None,
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, 30.0)),
            limits=httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    async def get(self, path: str) -> bytes | None:
        """The answer to a question about the server itself; None where it has no such path.

        Raises:
            FailedTryError: No answer, or one of 429 or 5xx.
            RefusedError: Another error.
        """
        try:
            return await self._ask("GET", path)
        except RefusedError as error:
            if error.status in (404, 405):
                return None
            raise

    async def post(self, path: str, body: bytes) -> bytes:
        """The answer to a request.

        Raises:
            FailedTryError: No answer, or one of 429 or 5xx.
            RefusedError: Another error.
        """
        return await self._ask("POST", path, content=body, headers={"Content-Type": "application/json"})

    async def _ask(self, method: str, path: str, **request: Any) -> bytes:  # Any: as httpx2 takes it
        import httpx2

        try:
            answer = await self._client.request(method, path, **request)
        except httpx2.UnsupportedProtocol as error:
            raise RefusedError(f"{self.url} cannot be asked: {error}") from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            said = foreign(without_key(str(error))) or type(error).__name__
            raise FailedTryError(f"{self.url} gave no answer: {said}") from None
        if answer.is_success:
            return answer.content
        said = self._words(answer)
        if answer.status_code == TOO_MANY or answer.status_code >= 500:
            raise FailedTryError(said, is_refusal=answer.status_code == TOO_MANY, wait_s=_wait_of(answer))
        if answer.status_code in (401, 403):
            said += f"\nA key goes into the environment variable {KEY_VARIABLE}."
        raise RefusedError(said, answer.status_code)

    def _words(self, answer: httpx2.Response) -> str:
        text = " ".join(foreign(without_key(answer.content.decode(errors="replace"))).split())
        if len(text) > SHOWN_CHARACTERS:
            text = text[:SHOWN_CHARACTERS] + "..."
        return f"{self.url} answered {answer.status_code}: {text or 'without a word'}"

    async def close(self) -> None:
        """End its connections."""
        await self._client.aclose()


def _wait_of(answer: httpx2.Response) -> float | None:
    """Seconds in `Retry-After`, which are a number or a date."""
    text = answer.headers.get("Retry-After", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except ValueError:
        return None


def encoded(request: dict[str, Any]) -> bytes:  # Any: JSON values
    """A request as JSON."""
    return msgspec.json.encode(request)


class Loop:
    """A thread that runs requests, so that they go on while rows are written."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tokscore-server", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:  # Any: of no interest
        """Begin; cancelling what it returns cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:  # Any: of no interest
        """Wait for the result."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
