"""Memory that nothing uses any more, given back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_memory_back() -> None:
    """Let the system have what is free: loading a tokenizer takes a multiple of what it keeps, in pieces."""
    with suppress(OSError, AttributeError):  # only glibc holds on to it, and has this function
        ctypes.CDLL(None).malloc_trim(0)
