"""The files in claims/: made whole or not at all, and by one process only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from tokscore.dataset.stores.path import StorePath, is_store
from tokscore.dataset.stores.upload import create


def list_names(folder: Path) -> list[str]:
    """Names of all files of a folder, without an object for each where there may be very many.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if is_store(folder):
        return [path.name for path in folder.iterdir()]
    return os.listdir(folder)  # noqa: PTH208  # names are all that is wanted


class ClaimFiles:
    """Small files of one folder of the file system, or of a store that makes a file on a condition.

    What claims need of a store is here and nowhere else: to make a file that nobody has, to replace one, to
    read, list and delete.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Names of all files, in any order; none where there is no folder."""
        with suppress(FileNotFoundError):
            return list_names(self.folder)
        return []

    def read(self, name: str) -> bytes | None:
        """What a file holds; None where it is not there."""
        with suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def create(self, name: str, content: bytes) -> bool:
        """Make a file; False where there is one of that name already, whoever is faster.

        Source:
            link(2): fails where the new name exists, on NFS as well.
        """
        path = self.folder / name
        if isinstance(path, StorePath):
            return create(path, content)
        temporary = self._write_aside(name, content)
        try:
            os.link(temporary, self.folder / name)
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links: others may read it before it is whole, and read again.
            return self._create_in_place(name, content)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _create_in_place(self, name: str, content: bytes) -> bool:
        try:
            handle = os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Give a file other contents."""
        if is_store(self.folder):
            (self.folder / name).write_bytes(content)
            return
        self._write_aside(name, content).replace(self.folder / name)

    def delete(self, name: str) -> None:
        """Remove a file, where it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all files, and the folder."""
        if is_store(self.folder):
            for name in self.names():
                self.delete(name)
            return
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_aside(self, name: str, content: bytes) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{name}.{uuid4().hex}.tmp"
        temporary.write_bytes(content)
        return temporary
