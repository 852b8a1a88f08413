"""The addresses of servers, and what else an engine of servers is told, checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tokscore.dataset.errors import UsageError

if TYPE_CHECKING:
    from tokscore.scoring.engines.settings import EngineSettings

# The environment variable that holds the key; it is read where a request is made, and kept nowhere.
KEY_VARIABLE = "TOKSCORE_SERVER_KEY"
# In `engine_arg`: seconds for one answer, and for all tries of one request.
TIMEOUT, RETRY = "timeout_s", "retry_s"
SECONDS = {TIMEOUT: 600.0, RETRY: 120.0}


def check(settings: EngineSettings) -> None:
    """Refuse settings that no server can be asked with.

    Raises:
        UsageError: There is no address or none of a server, or what it cannot be asked for.
    """
    if not settings.url:
        raise UsageError("the server engine needs an address: `url`, such as http://127.0.0.1:8000.")
    for url in settings.url:
        check_address(url)
    key()
    if settings.dtype.value != "auto":
        raise UsageError("`dtype` is for engines that load the model; a server computes in its own.")
    if settings.temperature != 1:
        raise UsageError("`temperature` is for engines that load the model; servers give logprobs at 1.")
    unknown = sorted(settings.engine_arg.keys() - {*SECONDS, "max_model_len"})
    if unknown:
        raise UsageError(
            f"`engine_arg` {', '.join(unknown)} is nothing that the server engine takes; expected "
            f"{', '.join(SECONDS)} or max_model_len."
        )
    for name in SECONDS:
        value = settings.engine_arg.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"`engine_arg` {name} is {value!r}; expected seconds above 0.")


def check_address(url: str) -> None:
    """Refuse an address that is none, or that holds a secret. Its text is told without what may be secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        shown = "" if "@" in url or "?" in url else f" {url!r}"
        raise UsageError(f"`url`{shown} is no address; expected one such as http://127.0.0.1:8000.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError(
            f"`url` for {host} has more than an address and a path, and process lists show it. "
            f"Put a key into the environment variable {KEY_VARIABLE}."
        )


def base_of(url: str) -> str:
    """The address that the paths of all kinds of servers follow."""
    return url.rstrip("/").removesuffix("/v1")


def key() -> str | None:
    """The key for all servers, without the line break that files end with; None where none is set.

    Raises:
        UsageError: It cannot stand in a header. A library that finds that out shows it.
    """
    found = os.environ.get(KEY_VARIABLE, "").strip()
    if not (found.isascii() and found.isprintable()):
        raise UsageError(
            f"the environment variable {KEY_VARIABLE} has a character that no header can have; expected "
            "printable ASCII."
        )
    return found or None


def without_key(text: str) -> str:
    """Foreign text in which the key does not stand."""
    secret = key()
    return text.replace(secret, "***") if secret else text
