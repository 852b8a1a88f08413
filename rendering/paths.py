"""Paths as Python users give them."""

from __future__ import annotations

import os
from pathlib import Path

PathName = str | os.PathLike[str]


def path_name(path: PathName) -> str:
    """The path or hub id as text; `~` is the home directory."""
    name = os.fspath(path)
    return str(Path(name).expanduser()) if name.startswith("~") else name
