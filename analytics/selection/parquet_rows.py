"""Rows of Parquet files copied as they are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import check_is_text
from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.writing import put_in_place, temporary_name

PARQUET = ".parquet"


def copy_rows(places: Sequence[Path], kept: Iterable[tuple[int, int]], out: Path) -> None:
    """Write some rows of Parquet files, eight bytes of memory for each.

    Args:
        places: The files.
        kept: Index of the file and number of the row from 1, in order.
        out: New file.

    Raises:
        UsageError: One of the files is not Parquet, or has other columns than the first.
    """
    for place in (*places, out):
        check_is_text(place)
    numbers = [array("q") for _ in places]
    for file, number in kept:
        numbers[file].append(number - 1)
    aside, writer = temporary_name(out), None
    try:
        for place, rows in zip(places, numbers, strict=True):
            wanted, start = np.frombuffer(rows, np.int64), 0
            try:
                table = pq.ParquetFile(place.ranges() if isinstance(place, StorePath) else place)
            except (OSError, pa.ArrowException) as error:
                raise UsageError(
                    f"{out} is to be Parquet, and {place.name} is not; expected Parquet files alone, or "
                    "another ending such as .jsonl."
                ) from error
            with table:
                if writer is None:
                    writer = pq.ParquetWriter(aside, table.schema_arrow, compression="zstd")
                elif table.schema_arrow != writer.schema:
                    raise UsageError(
                        f"{place.name} has other columns than the files before it; expected the same for one "
                        "Parquet file. Write .jsonl instead."
                    )
                for batch in table.iter_batches():
                    first, stop = np.searchsorted(wanted, [start, start + len(batch)])
                    here = wanted[first:stop] - start
                    start += len(batch)
                    if len(here):
                        writer.write_batch(batch.take(pa.array(here)))
        if writer is not None:
            writer.close()
            put_in_place(aside, out)
    finally:
        if writer is not None:
            writer.close()
        aside.unlink(missing_ok=True)
