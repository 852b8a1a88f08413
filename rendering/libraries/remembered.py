"""What is slow to find out, left in a file for the next process, which finds out again where that fails."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path


def cache_directory() -> Path:
    """$TOKSCORE_CACHE, else tokscore in $XDG_CACHE_HOME or in ~/.cache.

    Raises:
        RuntimeError: It is in the home directory, and there is none.
    """
    chosen = os.environ.get("TOKSCORE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tokscore"


def remembered_file(name: str) -> Path:
    """Where a file of that name is kept; errors as of `cache_directory`."""
    return cache_directory() / name


def read_remembered(name: str) -> object:
    """A file's JSON, None where it is missing or damaged."""
    try:
        found: object = json.loads(remembered_file(name).read_text("utf-8"))
    except (OSError, ValueError, RuntimeError):  # nested too deeply, or without a home directory
        return None
    return found


def write_remembered(name: str, content: object) -> None:
    """Replace a file as a whole, where it can be written: it is only slower without."""
    with suppress(OSError, RuntimeError), ExitStack() as on_failure:
        path = remembered_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            on_failure.callback(Path(file.name).unlink, missing_ok=True)
            json.dump(content, file, indent=1)
        Path(file.name).replace(path)
        on_failure.pop_all()
