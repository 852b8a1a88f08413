"""Temporary files and folders, deleted when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def temporary_copy(write: Callable[[BinaryIO], None]) -> Path:
    """A temporary file with what `write` puts into it, deleted when the process ends."""
    with tempfile.NamedTemporaryFile(prefix="tokscore-", suffix=".jsonl", delete=False) as created:
        path = Path(created.name)
    atexit.register(path.unlink, missing_ok=True)
    with path.open("wb") as copy:
        write(copy)
    return path


def temporary_folder() -> Path:
    """A new folder, deleted when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="tokscore-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


PathName = str | os.PathLike[str]


def path_name(path: PathName) -> str:
    """The path or hub id as text; `~` is the home directory."""
    name = os.fspath(path)
    return str(Path(name).expanduser()) if name.startswith("~") else name
