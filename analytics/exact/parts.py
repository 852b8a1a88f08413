"""The table of exact values on disk: a file for each batch of conversations, read back as checked tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.analytics.comparison.pairing import PairBatch
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.exact.columns import (
    ATTRIBUTION,
    exact_columns,
    exact_measures,
    exact_schema,
    out_of_range,
)
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.errors import InputError
from tokscore.dataset.table_files import TableFile
from tokscore.dataset.writing import remove_abandoned, write_file

_AGAIN = "Delete it and run again."


class ExactParts:
    """A folder of parts, each whole or not there.

    Attributes:
        folder: Where they are.
        alphas: Weights of the teacher in the mixtures.
    """

    def __init__(self, folder: Path, alphas: Sequence[float]) -> None:
        """Open the folder; what killed runs left unfinished in it is deleted."""
        self.folder, self.alphas = folder, tuple(alphas)
        self._columns = exact_columns(alphas)
        if folder.is_dir():
            remove_abandoned(folder)

    def has(self, part: int) -> bool:
        """Whether a part is there."""
        return self._path(part).is_file()

    def write(self, part: int, table: pa.Table) -> None:
        """Write a part of `rows`; it appears when it is whole."""
        sink = pa.BufferOutputStream()
        options = {"compression": "zstd", "compression_level": 3, "write_page_checksum": True}
        pq.write_table(table, sink, row_group_size=max(1, table.num_rows), **options)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self._path(part), sink.getvalue())

    def rows(self, pair: PairBatch, rows: NDArray[np.int64], values: dict[str, FloatArray]) -> pa.Table:
        """The rows of some tokens of a batch, with their values."""
        return pa.table({**_owners(pair, rows), **values}, schema=exact_schema(self.alphas))

    def read(self, part: int, pair: PairBatch, rows: NDArray[np.int64]) -> pa.Table:
        """The rows of a part.

        Args:
            part: One that is there.
            pair: The conversations that it is of.
            rows: Their tokens that it has.

        Raises:
            InputError: It is damaged, of other tokens, or holds what cannot be.
        """
        path = self._path(part)
        with TableFile(path, self._columns, hint=_AGAIN) as file:
            table = file.read()
        names = ("conversation_id", "branch", *ATTRIBUTION)
        schema = pa.schema([exact_schema(self.alphas).field(name) for name in names])
        if not table.select(list(names)).equals(pa.table(_owners(pair, rows), schema=schema)):
            raise InputError(f"{path} holds other tokens than the datasets. {_AGAIN}")
        for measure in exact_measures(self.alphas):
            wrong = out_of_range(measure, table[measure.name].to_numpy())
            if wrong is not None:
                raise InputError(
                    f"{path} has {wrong.found} in column {measure.name}, row {wrong.row}; expected "
                    f"{wrong.expected}. {_AGAIN}"
                )
        return table

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of all tokens, a part at a time; all columns by default.

        Raises:
            InputError: A part is damaged.
        """
        for path in sorted(self.folder.glob(part_name(0).replace("00000", "*"))):
            with TableFile(path, self._columns, hint=_AGAIN) as file:
                yield file.read(columns)

    def values(self, column: str) -> Iterator[FloatArray]:
        """One measure of all tokens, a part at a time; errors as of `tables`."""
        return (table[column].to_numpy() for table in self.tables([column]))

    def _path(self, part: int) -> Path:
        return self.folder / part_name(part)


def _owners(pair: PairBatch, rows: NDArray[np.int64]) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Whose tokens they are, by column."""
    conversations = np.searchsorted(pair.starts, rows, side="right") - 1
    taken = pair.teacher.select(list(ATTRIBUTION)).take(pa.array(rows))
    ids = pa.array([place.conversation_id for place in pair.places], pa.string())
    branches = np.array([place.branch for place in pair.places], np.int32)
    owners = {
        "conversation_id": ids.take(pa.array(conversations)),
        "branch": pa.array(branches[conversations]),
    }
    for name, column in zip(ATTRIBUTION, taken.columns, strict=True):
        is_coded = pa.types.is_dictionary(column.type)
        owners[name] = column.cast(column.type.value_type) if is_coded else column
    return owners
