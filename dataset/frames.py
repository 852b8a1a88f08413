"""The tables of a dataset as polars frames, read as `table_files` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, overload

from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import SCHEMAS, DatasetKind

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


@overload
def load_table(
    dataset: PathName, table: str, *, columns: Sequence[str] | None = None, lazy: Literal[False] = False
) -> pl.DataFrame: ...


@overload
def load_table(
    dataset: PathName, table: str, *, columns: Sequence[str] | None = None, lazy: Literal[True]
) -> pl.LazyFrame: ...


def load_table(
    dataset: PathName, table: str, *, columns: Sequence[str] | None = None, lazy: bool = False
) -> pl.DataFrame | pl.LazyFrame:
    """One table of a dataset; only the columns asked for are read.

    Args:
        dataset: A finished dataset, or its directory.
        table: A name in `SCHEMAS`; the tokens of a score dataset are its scores without what a model said.
        columns: Which, and in this order; all of the table by default.
        lazy: Give a LazyFrame, which reads nothing before it is collected.

    Returns:
        The rows of all parts in plan order.

    Raises:
        UsageError: There is no such table or column.
        InputError: No whole dataset, or one without scores where they are asked for.
    """
    if table not in SCHEMAS:
        raise UsageError(f"there is no table {table!r}; expected {', '.join(SCHEMAS)}.")
    if isinstance(columns, str):
        raise UsageError(f"columns is {columns!r}; expected a list such as [{columns!r}].")
    names = SCHEMAS[table].names
    for name in columns or ():
        if name not in names:
            raise UsageError(
                f"the table {table} has no column {name!r}; expected some of {', '.join(names)}."
            )
    kind = DatasetKind.SCORES if table == DatasetKind.SCORES else None
    opened = Dataset(dataset, kind=kind)
    frame = scan_table(opened, table).select(names if columns is None else columns)
    return frame if lazy else frame.collect()


def scan_table(dataset: Dataset, table: str) -> pl.LazyFrame:
    """A table of an open dataset, of which a row group and the columns that are used are held at a time.

    Collecting it raises InputError where a file is damaged.
    """
    from polars.io.plugins import register_io_source

    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        n_left = n_rows
        for batch in _batches(dataset, table, names if columns is None else columns):
            frame = _frame(batch)
            if n_left is not None:
                frame = frame.head(n_left)
                n_left -= len(frame)
            yield frame if predicate is None else frame.filter(predicate)
            if n_left == 0:
                return

    names = SCHEMAS[table].names
    return register_io_source(frames, schema=_frame(SCHEMAS[table].empty_table()).schema)


def _batches(dataset: Dataset, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    if table == "vocabulary":
        yield dataset.vocabulary(columns)
        return
    # The tokens of a score dataset are its scores without what a model said.
    yield from dataset.batches(dataset.manifest.kind if table == DatasetKind.TOKENS else table, columns)


def _frame(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


@overload
def load_tokens(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: Literal[False] = False
) -> pl.DataFrame: ...


@overload
def load_tokens(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: Literal[True]
) -> pl.LazyFrame: ...


def load_tokens(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: bool = False
) -> pl.DataFrame | pl.LazyFrame:
    """The tokens of a token or score dataset, one a row, with the columns of `tables.TOKENS`.

    Arguments and errors are those of `load_table`.
    """
    if lazy:
        return load_table(dataset, "tokens", columns=columns, lazy=True)
    return load_table(dataset, "tokens", columns=columns)
