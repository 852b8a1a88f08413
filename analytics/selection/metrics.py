"""The numbers of every conversation of a dataset, one row a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tokscore.analytics.groups.grouping import GroupValue, metadata_value
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind

if TYPE_CHECKING:
    import pyarrow as pa

PLACE_COLUMNS = ("conversation_id", "source_file", "source_line")
COUNT_METRICS = ("n_branches", "n_messages", "n_tokens", "n_content", "n_sampled", "n_sampled_unknown")
SCORE_METRICS = (
    "n_scored",
    "sum_logprob",
    "mean_logprob",
    "min_logprob",
    "perplexity",
    "rank1_share",
    "mean_entropy",
)
_PLACES = (*PLACE_COLUMNS, "n_messages", "n_tokens")
_OWNERS = ("role", "is_sampled", "is_content")
_SCORED = ("logprob", "rank", "entropy")


def metric_names(kind: DatasetKind) -> tuple[str, ...]:
    """Columns of `conversation_metrics` that are numbers."""
    return (*COUNT_METRICS, *(SCORE_METRICS if kind is DatasetKind.SCORES else ()))


def conversation_metrics(
    dataset: Dataset, *, role: str | None = None, sampled: bool = False, metadata: Sequence[str] = ()
) -> Iterator[pl.DataFrame]:
    """Counts and means of every conversation, with the definitions of `StatsRow`; all branches count.

    One part of the dataset is held at a time.

    Args:
        dataset: Of either kind.
        role: Count the tokens and messages of this role alone.
        sampled: Count tokens alone of which it is known that a model generated them.
        metadata: Names such as `metadata.source` to add: numbers where all values are, otherwise text.

    Yields:
        A frame for each part, also for one without conversations: `PLACE_COLUMNS`, `metric_names` and
        `metadata`, a row for each record in the order of the dataset. Sums are in nats; means without tokens
        are null.

    Raises:
        InputError: A table is damaged.
    """
    types = metadata_types(dataset, metadata)
    for part in dataset.manifest.parts:
        with dataset.open_part("conversations", part.index) as file:
            places = file.read([*_PLACES, *(["metadata"] if metadata else [])])
        ids = places["conversation_id"].to_numpy()
        is_first = np.concatenate([[True], ids[1:] != ids[:-1]]) if len(ids) else np.zeros(0, np.bool_)
        records, firsts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
        frame = _frame(places.select(list(PLACE_COLUMNS)).take(firsts))
        frame = frame.with_columns(record=pl.int_range(pl.len(), dtype=pl.Int64))
        for counts in (
            _branches(records),
            _messages(dataset, part.index, records, places, role),
            _tokens(dataset, part.index, records, places, role, sampled=sampled),
        ):
            frame = frame.join(counts, on="record", how="left", maintain_order="left")
        counted = [name for name in (*COUNT_METRICS, "n_scored") if name in frame.columns]
        texts = places["metadata"].take(firsts).to_pylist() if metadata else []
        yield frame.drop("record").with_columns(
            pl.col(counted).fill_null(0),
            *(
                _typed(name, [metadata_value(text, name) for text in texts], dtype)
                for name, dtype in types.items()
            ),
        )


def metadata_types(dataset: Dataset, names: Sequence[str]) -> dict[str, pl.DataType]:
    """The types of columns of metadata, by the values that all conversations have.

    Raises:
        InputError: A conversations table is damaged.
    """
    kinds: dict[str, set[type]] = {name: set() for name in names}
    for batch in dataset.batches("conversations", ["metadata"]) if names else ():
        for text in batch["metadata"].to_pylist():
            for name, found in kinds.items():
                value = metadata_value(text, name)
                is_wide = isinstance(value, int) and not -(2**63) <= value < 2**63
                found.add(float if is_wide else type(value))
    return {name: _type_of(found - {type(None)}) for name, found in kinds.items()}


def _type_of(kinds: set[type]) -> pl.DataType:
    if not kinds:
        return pl.Null()
    if kinds == {int}:
        return pl.Int64()
    return pl.Float64() if kinds <= {int, float} else pl.String()


def _typed(name: str, values: Sequence[GroupValue], dtype: pl.DataType) -> pl.Series:
    """The values as a column; as text where they are of several kinds."""
    to: type[int | float | str] = int if dtype == pl.Int64 else float if dtype == pl.Float64 else str
    return pl.Series(name, [None if value is None else to(value) for value in values], dtype)


def _branches(records: np.ndarray) -> pl.DataFrame:
    return (
        pl.DataFrame({"record": records}, schema={"record": pl.Int64})
        .group_by("record")
        .agg(n_branches=pl.len())
    )


def _messages(
    dataset: Dataset, part: int, records: np.ndarray, places: pa.Table, role: str | None
) -> pl.DataFrame:
    with dataset.open_part("messages", part) as file:
        roles = file.read(["role"])
    owners = np.repeat(records, places["n_messages"].to_numpy())
    frame = _frame(roles).with_columns(record=pl.Series(owners))
    if role is not None:
        frame = frame.filter(pl.col("role") == role)
    return frame.group_by("record").agg(n_messages=pl.len())


def _tokens(
    dataset: Dataset, part: int, records: np.ndarray, places: pa.Table, role: str | None, *, sampled: bool
) -> pl.DataFrame:
    kind = dataset.manifest.kind
    columns = [*_OWNERS, *(_SCORED if kind is DatasetKind.SCORES else ())]
    with dataset.open_part(kind.value, part, encoded=["role"]) as file:
        rows = file.read(columns)
    frame = _frame(rows).with_columns(record=pl.Series(np.repeat(records, places["n_tokens"].to_numpy())))
    if role is not None:
        frame = frame.filter(pl.col("role").cast(pl.String) == role)
    if sampled:
        frame = frame.filter(pl.col("is_sampled"))
    counts = [
        pl.len().alias("n_tokens"),
        pl.col("is_content").sum().alias("n_content"),
        pl.col("is_sampled").sum().alias("n_sampled"),
        pl.col("is_sampled").null_count().alias("n_sampled_unknown"),
    ]
    if kind is not DatasetKind.SCORES:
        return frame.group_by("record").agg(counts)
    logprob = pl.col("logprob").cast(pl.Float64)
    has_any = pl.col("logprob").count() > 0
    scored = [
        pl.col("logprob").count().alias("n_scored"),
        pl.when(has_any).then(logprob.sum()).alias("sum_logprob"),
        logprob.mean().alias("mean_logprob"),
        logprob.min().alias("min_logprob"),
        (-logprob.mean()).exp().alias("perplexity"),
        (pl.col("rank") == 1).mean().alias("rank1_share"),
        pl.col("entropy").cast(pl.Float64).mean().alias("mean_entropy"),
    ]
    return frame.group_by("record").agg(counts + scored)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
