"""The moment in which a part becomes visible: of two processes that wrote one part, one puts it in place."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from tokscore.dataset.claims.files import ClaimFiles, list_names
from tokscore.dataset.claims.processes import is_running, this_host
from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.stores.upload import is_sent_ahead

CLAIMS = "claims"
LOCK = f"{CLAIMS}/lock"
_PART = re.compile(r"^part-([0-9]{5}|[1-9][0-9]{5,8})\.parquet$", re.MULTILINE)
# Seconds after which the right to put a part in place is taken from a process that does not let go of it:
# where that takes a few calls, and where it has to send the part first. And between looks.
STORE_LEASE_S = 60.0
SENDING_LEASE_S = 600.0
_LOOK_S = 0.5
# Parts that are looked for one by one, and not in a listing of all.
_FEW = 64
# A file system that has no locks: then two processes may put the same part in place in the same milliseconds.
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def part_name(index: int, suffix: str = "parquet") -> str:
    """File name of one part of a table."""
    return f"part-{index:05d}.{suffix}"


def finished_names(root: Path, table: str, parts: Collection[int]) -> set[int]:
    """Those of the parts whose `table`, which is renamed last, is in place; from its name alone."""
    folder = root / table
    if len(parts) <= (1 if isinstance(root, StorePath) else _FEW):
        return {part for part in parts if (folder / part_name(part)).exists()}
    try:
        names = list_names(folder)
    except FileNotFoundError:
        return set()
    # In one call, as there may be very many.
    return set(map(int, _PART.findall("\n".join(names)))).intersection(parts)


@contextmanager
def committing(root: Path, table: str, part: int) -> Iterator[bool]:
    """Puts a part in place while no other process does; False where it is in place already.

    The lock is the system's, on one byte a part of `claims/lock`: it goes with the process that holds it, and
    a process that is stopped while it holds it keeps others from the same part only.

    Source:
        fcntl(2), advisory record locking; over NFS by its lock manager.
    """
    if isinstance(root, StorePath):
        lease_s = STORE_LEASE_S if is_sent_ahead(root) else SENDING_LEASE_S
        with _locked_in_store(root, part, lease_s):
            yield part not in finished_names(root, table, [part])
        return
    with _open(root / LOCK) as file:
        _lock(file.fileno(), part)
        yield part not in finished_names(root, table, [part])


@contextmanager
def _locked_in_store(root: Path, part: int, lease_s: float) -> Iterator[None]:
    """The right to put the files of a part in place.

    Who has it is a file in claims/. It is taken from a process that ended with it, or stands still, under the
    next number, so that one process only takes it.
    """
    files, me = ClaimFiles(root / CLAIMS), f"{this_host()} {os.getpid()} {uuid4().hex}".encode()
    attempt = 1
    while not files.create(name := f"part-{part:05d}.commit.{attempt}.json", me):
        since = time.monotonic()
        while (owner := files.read(name)) is not None:
            if _has_ended(owner) or time.monotonic() - since > lease_s:
                attempt += 1
                break
            time.sleep(_LOOK_S)
        else:
            attempt = 1  # who had it deleted all of them, and another may have the first by now
    try:
        yield
    finally:
        for earlier in range(1, attempt + 1):
            files.delete(f"part-{part:05d}.commit.{earlier}.json")


def _has_ended(owner: bytes) -> bool:
    """Whether a process of this machine had the right, and is there no more."""
    host, _, process = owner.decode("utf-8", "replace").partition(" ")
    pid = process.partition(" ")[0]
    return host == this_host() and pid.isdigit() and not is_running(int(pid))


def _open(path: Path) -> BinaryIO:
    while True:
        path.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # a process that finds all parts done removes the folder
            return path.open("ab")


def _lock(file: int, part: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, part)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
