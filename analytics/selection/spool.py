"""Numbers of conversations on disk, so that memory does not grow with how many there are."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from tokscore.dataset.files import temporary_writing


class Spool:
    """Frames with the same columns, one for each part of a dataset, in a temporary file.

    Attributes:
        n_rows: Of all frames.
    """

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        """Make the file, which is deleted with the object.

        Args:
            schema: Name and type of every column.

        Raises:
            TokscoreError: It cannot be written, here or by other methods.
        """
        self._schema = dict(schema)
        empty = pl.DataFrame(schema=self._schema).to_arrow()
        with temporary_writing():
            folder = tempfile.mkdtemp(prefix="tokscore-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = Path(folder, "rows.parquet")
            self._writer = pq.ParquetWriter(self._path, empty.schema, compression="zstd")
        self._groups: dict[int, int] = {}
        self.n_rows = 0

    def add(self, part: int, frame: pl.DataFrame) -> None:
        """Append the columns of the frame of a part."""
        rows = frame.select(pl.col(name).cast(dtype) for name, dtype in self._schema.items())
        if len(rows):
            self._groups[part] = len(self._groups)
            with temporary_writing():
                self._writer.write_table(rows.to_arrow(), row_group_size=len(rows))
            self.n_rows += len(rows)

    def finish(self) -> None:
        """Close the file: from here on it can be read, and nothing can be added."""
        with temporary_writing():
            self._writer.close()

    @property
    def schema(self) -> Mapping[str, pl.DataType]:
        """Name and type of every column."""
        return self._schema

    def rows(self) -> pl.LazyFrame:
        """All rows, of which polars reads the columns that are asked for."""
        return pl.scan_parquet(self._path) if self.n_rows else pl.LazyFrame(schema=self._schema)

    def frame(self, part: int) -> pl.DataFrame:
        """That of one part."""
        if part not in self._groups:
            return pl.DataFrame(schema=self._schema)
        frame = pl.from_arrow(self._file.read_row_group(self._groups[part], use_threads=False))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def frames(self) -> Iterator[pl.DataFrame]:
        """All in the order in which they were added, one held at a time; those without rows are left out."""
        return map(self.frame, self._groups)

    @cached_property
    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._path)
