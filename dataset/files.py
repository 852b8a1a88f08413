"""Temporary files and folders, deleted when the process ends."""

from __future__ import annotations

import atexit
import errno
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokscore.dataset.errors import TokscoreError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_BYTES = 2**16
# A path has lost one of the two slashes.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def temporary_copy(write: Callable[[BinaryIO], None]) -> Path:
    """A temporary file with what `write` puts into it, deleted when the process ends.

    Raises:
        TokscoreError: It cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="tokscore-", suffix=".jsonl", delete=False) as created:
            path = Path(created.name)
    except OSError as error:
        raise _no_room(error) from error
    atexit.register(path.unlink, missing_ok=True)
    with io.BufferedRandom(_TemporaryFile(path, "r+b"), _BUFFER_BYTES) as copy:
        write(copy)
    return path


class _TemporaryFile(io.FileIO):
    """A file whose failures are never taken for those of what is copied into it."""

    def write(self, content: Buffer, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            raise _no_room(error) from error


def _no_room(error: OSError) -> TokscoreError:
    return TokscoreError(
        f"a temporary file cannot be written in {tempfile.gettempdir()}: {error.strerror or error}.\n"
        "Set TMPDIR to a directory with more room."
    )


def is_of_machine(error: BaseException) -> bool:
    """Whether the system failed, rather than what was read: a disk or a permission, not a damaged file.

    Libraries raise the latter without a number, or with that of an argument that makes no sense.
    """
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def temporary_folder() -> Path:
    """A new folder, deleted when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="tokscore-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def text_name(name: str) -> str:
    r"""The name as text that can be stored: bytes that are not UTF-8 as `\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_is_text(path: Path) -> None:
    """Refuse a path that libraries cannot open, and a URL, of which a path would make a folder `s3:`.

    Raises:
        UsageError: It is not UTF-8, or a URL.
    """
    if _URL.match(str(path)):
        raise UsageError(
            f"{path} is a URL; expected a directory of this machine. Write there and copy it, or mount the "
            "store. For a directory of that name give its whole path."
        )
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{path} is not UTF-8; expected a path that is, as Parquet files are opened by it. Rename it."
        ) from error


PathName = str | os.PathLike[str]


def path_name(path: PathName) -> str:
    """The path or hub id as text; `~` is the home directory.

    Raises:
        UsageError: It is neither text nor a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{type(path).__name__} is no path; expected text, a Path or a Dataset.")
    name = os.fspath(path)
    return str(Path(name).expanduser()) if name.startswith("~") else name
