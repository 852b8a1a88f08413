"""Temporary files and folders, deleted when the process ends."""

from __future__ import annotations

import atexit
import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokscore.dataset.errors import TokscoreError, UsageError
from tokscore.dataset.stores.path import StorePath, is_store
from tokscore.dataset.stores.urls import WRITTEN, has_user, shown, split_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_BYTES = 2**16


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


@contextmanager
def temporary_writing() -> Iterator[None]:
    """Where a library writes a temporary file.

    Raises:
        TokscoreError: It cannot be written.
    """
    try:
        yield
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
    """Refuse a path that libraries cannot open.

    Raises:
        UsageError: It is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{path} is not UTF-8; expected a path that is, as Parquet files are opened by it. Rename it."
        ) from error


def check_is_file_name(path: Path) -> None:
    """Refuse what cannot become a file, before any work is done for it; a store makes its directories.

    Raises:
        UsageError: It is a directory, or in none.
    """
    if is_store(path):
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory; expected the name of a file.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} is in no directory that exists; make it first.")


def check_is_new_file(path: Path) -> None:
    """As `check_is_file_name`, where nothing may be replaced.

    Raises:
        UsageError: There is something of that name, too.
    """
    if path.exists():
        raise UsageError(f"{path} exists already; expected a new file. Choose another name.")
    check_is_file_name(path)


def check_is_new_folder(folder: Path) -> None:
    """Refuse a directory that holds something, before any work is done for it.

    Raises:
        UsageError: It does, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; expected a new directory. Choose another with -o.")


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


def location(path: PathName) -> Path:
    """The place that a name stands for: a path of this machine, or of a store where it is a URL.

    Raises:
        UsageError: It is neither text nor a path, no such store is known, the package for it is missing, or a
            password stands in the URL.
    """
    if isinstance(path, StorePath):
        return path
    name = path_name(path)
    url = split_url(name)
    if url is None:
        return Path(name)
    if url.scheme in ("file", "local"):
        return Path("/" + url.rest)
    if has_user(url):
        raise UsageError(
            f"{shown(name)} has a user or a password in it; expected them in the environment, as the library "
            "of the store reads them, so that they stand in no file and no message."
        )
    from tokscore.dataset.stores.calls import fault_of

    fault = fault_of(url.scheme)
    if fault is not None:
        raise UsageError(f"{shown(name)}: {fault}")
    return StorePath(f"{url.scheme}://{url.rest}")


def output_location(path: PathName) -> Path:
    """As `location`, of what is to be written."""
    found = location(path)
    if isinstance(found, StorePath) and found.scheme not in WRITTEN:
        raise UsageError(
            f"{found} is where tokscore only reads; expected a directory, or a store that can make a file on "
            "the condition that there is none: s3://, gs:// or az://."
        )
    return found
