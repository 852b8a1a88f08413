"""Hidden states in a file without a name, a row a token, written by one process and read by another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tokscore.dataset.errors import EngineError

if TYPE_CHECKING:
    from types import TracebackType


class NamelessFile:
    """A file that the system deletes when this process ends, in whatever way, and that others can open.

    Attributes:
        path: Where other processes of this user find it while this one has it open.
    """

    def __init__(self, folder: Path) -> None:
        """Open it on the disk of `folder`.

        Raises:
            EngineError: This system has no /proc, where others find it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".states.", suffix=".tmp")  # noqa: SIM115
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        if not Path(self.path).exists():
            self._file.close()
            raise EngineError(
                "hidden states are handed on in a file of /proc, which this system does not have. "
                "Use `engine='transformers'`."
            )

    def __enter__(self) -> NamelessFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


class States:
    """Rows of the one width and type that a model's head takes.

    Attributes:
        width: Numbers of a row.
        dtype: Their type.
    """

    def __init__(self, path: str, width: int, dtype: torch.dtype) -> None:
        """Open the file."""
        self.width, self.dtype = width, dtype
        self._row_bytes = width * dtype.itemsize
        self._descriptor = os.open(path, os.O_RDWR)

    def write(self, first: int, rows: torch.Tensor) -> None:
        """Put rows at the places from `first` on.

        Raises:
            EngineError: The disk is full.
        """
        given = _bytes_of(rows.contiguous().cpu())
        at = first * self._row_bytes
        while given:
            try:
                n_written = os.pwrite(self._descriptor, given, at)
            except OSError as error:
                raise EngineError(
                    f"hidden states cannot be written: {error.strerror or error}.\n"
                    "Set TOKSCORE_CACHE to a directory with more room, or use `engine='transformers'`."
                ) from error
            given, at = given[n_written:], at + n_written

    def read(self, runs: Iterable[tuple[int, int]]) -> torch.Tensor:
        """The rows of runs, each its first row and their number, one after the other; on the CPU.

        Raises:
            EOFError: There are none.
        """
        runs = list(runs)
        found = torch.empty((sum(n for _, n in runs), self.width), dtype=self.dtype)
        left = _bytes_of(found)
        for first, n in runs:
            at, stop = first * self._row_bytes, (first + n) * self._row_bytes
            while at < stop:
                n_read = os.preadv(self._descriptor, [left[: stop - at]], at)
                if not n_read:
                    raise EOFError(f"hidden states end before row {first + n}")
                left, at = left[n_read:], at + n_read
        return found


def _bytes_of(rows: torch.Tensor) -> memoryview:
    return memoryview(rows.view(torch.uint8).numpy().reshape(-1).data)
