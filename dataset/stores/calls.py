"""Calls of a store: tried again while the network is away, their failures in the words of this machine."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

from tokscore.dataset.stores.urls import PACKAGES, shown, without_secrets

T = TypeVar("T")

# Seconds for which a store that cannot be reached is tried again, and between tries at first and at most.
_PATIENCE = "TOKSCORE_STORE_PATIENCE_S"
PATIENCE_S = 120.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
# Failures that pass, by the names of their classes and of those above them: each library has its own.
_PASSING = {
    "ConnectionError",
    "TimeoutError",
    "gaierror",
    "FSTimeoutError",
    "HTTPClientError",
    "IncompleteRead",
    "ClientConnectionError",
    "ClientPayloadError",
    "ServiceRequestError",
    "ServiceResponseError",
    "TransportError",
}
_PASSING_NUMBERS = {errno.EBUSY, errno.EAGAIN, getattr(errno, "EREMOTEIO", errno.EIO)}
_SERVER_ERRORS = 500
_TOO_MANY = 429
# Logs of libraries that print a traceback for each try that fails.
_LOUD = ("gcsfs",)
# Where errors of the libraries of stores have the status of HTTP.
_STATUS = ("status", "status_code", "code")


@cache
def fault_of(scheme: str) -> str | None:
    """Why URLs of a scheme cannot be used here; None where they can."""
    from fsspec.registry import known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        return (
            f"{scheme}:// is no store that fsspec knows; expected s3, gs, az, hf, http or https. "
            "A path of that name begins with ./"
        )
    asked = os.environ.get(_PATIENCE)
    if asked is not None and not re.fullmatch(r"[0-9]{1,6}(\.[0-9]*)?", asked):
        return f"{_PATIENCE} is {asked!r}; expected seconds."
    package, extra = PACKAGES.get(scheme, (None, None))
    if package is None or find_spec(package):
        return None
    how = f"pip install 'tokscore[{extra}]'" if extra else f"pip install {package}"
    return f"{scheme}:// needs the package {package}, which is not installed. Install it: {how}"


def filesystem(scheme: str) -> Any:  # Any: fsspec has no types
    """The store behind a scheme, with what the environment says of it."""
    import fsspec

    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return fsspec.filesystem(scheme)


def is_passing(error: BaseException) -> bool:
    """Whether the same call may succeed in a while: the network or the server failed, not the request."""
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError):
        return False
    if _PASSING & {each.__name__ for each in type(error).__mro__}:
        return True
    for status in (getattr(error, name, None) for name in _STATUS):
        if isinstance(status, int) and (status >= _SERVER_ERRORS or status == _TOO_MANY):
            return True
    return isinstance(error, OSError) and error.errno in _PASSING_NUMBERS


def persistently(call: Callable[[], T], place: str) -> T:
    """What a call of a store returns, which is tried again while the network is away.

    Args:
        call: May run several times.
        place: URL, for the error.

    Raises:
        OSError: With a number, so that it is told from a file that is damaged.
    """
    patience_s = float(os.environ.get(_PATIENCE) or PATIENCE_S)
    give_up, wait_s = time.monotonic() + patience_s, _FIRST_WAIT_S
    while True:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # each store has errors of its own
            if not is_passing(error) or time.monotonic() + wait_s > give_up:
                # Not from it: its text may hold a signature.
                raise as_os_error(error, place) from None
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def as_os_error(error: Exception, place: str) -> OSError:
    """A failure of a store as the system has them."""
    place = shown(place)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such file in the store", place)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "there is such a file in the store", place)
    text = without_secrets(str(error)).strip().splitlines()
    reason = f"{type(error).__name__}: {text[0].rstrip('.')}" if text else type(error).__name__
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return PermissionError(errno.EACCES, f"the store refuses it ({reason})", place)
    if is_passing(error):
        return OSError(errno.EIO, f"the store cannot be reached ({reason})", place)
    return OSError(errno.EIO, f"the store failed ({reason})", place)
