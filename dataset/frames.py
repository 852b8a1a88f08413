"""The tables of a dataset as polars frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from tokscore.dataset import schema as tables
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.reading import VOCABULARY_NAME, Dataset
from tokscore.dataset.schema import DatasetKind

if TYPE_CHECKING:
    import polars as pl

SCHEMAS = {
    "tokens": tables.TOKENS,
    "scores": tables.SCORES,
    "spans": tables.SPANS,
    "messages": tables.MESSAGES,
    "conversations": tables.CONVERSATIONS,
    "vocabulary": tables.VOCABULARY,
}


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
    import polars as pl

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
    opened = Dataset(Path(path_name(dataset)), kind=kind)
    if table == "vocabulary":
        files = [opened.root / VOCABULARY_NAME]
    else:
        files = opened.files(opened.manifest.kind.value if table == DatasetKind.TOKENS else table)
    frame = pl.scan_parquet(files).select(names if columns is None else columns)
    return frame if lazy else frame.collect()


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
