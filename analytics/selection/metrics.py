"""The numbers of every conversation of a dataset, one row a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tokscore.analytics.comparison.diff import diff_report
from tokscore.analytics.groups.grouping import metadata_value
from tokscore.analytics.groups.tables import group_table
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
_PLACES = (*PLACE_COLUMNS, "n_messages", "n_tokens", "metadata")
_OWNERS = ("role", "is_sampled", "is_content")
_SCORED = ("logprob", "rank", "entropy")


def metric_names(kind: DatasetKind) -> tuple[str, ...]:
    """Columns of `conversation_metrics` that are numbers."""
    return (*COUNT_METRICS, *(SCORE_METRICS if kind is DatasetKind.SCORES else ()))


def conversation_metrics(
    dataset: Dataset, *, role: str | None = None, sampled: bool = False, metadata: Sequence[str] = ()
) -> pl.DataFrame:
    """Counts and means of every conversation, with the definitions of `StatsRow`; all branches count.

    One part of the dataset is held at a time.

    Args:
        dataset: Of either kind.
        role: Count the tokens and messages of this role alone.
        sampled: Count tokens alone of which it is known that a model generated them.
        metadata: Names such as `metadata.source` to add, as text where their values are of several kinds.

    Returns:
        `PLACE_COLUMNS`, `metric_names` and `metadata`, a row for each record in the order of the dataset.
        Sums are in nats; means without tokens are null.

    Raises:
        InputError: A table is damaged.
    """
    frames = []
    found: dict[str, list[object]] = {name: [] for name in metadata}
    for part in dataset.manifest.parts:
        with dataset.open_part("conversations", part.index) as file:
            places = file.read(_PLACES)
        if not places.num_rows:
            continue
        ids = places["conversation_id"].to_numpy()
        records = np.cumsum(np.concatenate([[True], ids[1:] != ids[:-1]])) - 1
        firsts = np.unique(records, return_index=True)[1]
        for name, values in found.items():
            texts = places["metadata"].take(firsts).to_pylist()
            values += [metadata_value(text, name) for text in texts]
        named = places.select(list(PLACE_COLUMNS)).take(firsts)
        frame = _frame(named).with_columns(record=pl.int_range(pl.len(), dtype=pl.Int64))
        for counts in (
            _branches(records),
            _messages(dataset, part.index, records, places, role),
            _tokens(dataset, part.index, records, places, role, sampled=sampled),
        ):
            frame = frame.join(counts, on="record", how="left", maintain_order="left")
        counted = [name for name in (*COUNT_METRICS, "n_scored") if name in frame.columns]
        frames.append(frame.drop("record").with_columns(pl.col(counted).fill_null(0)))
    if not frames:
        return pl.DataFrame(schema=[*PLACE_COLUMNS, *metric_names(dataset.manifest.kind), *metadata])
    columns = [_metadata_series(name, values) for name, values in found.items()]
    return pl.concat(frames).with_columns(columns)


def _branches(records: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"record": records}).group_by("record").agg(n_branches=pl.len())


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


def _metadata_series(name: str, values: list[object]) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values)


def compared_metrics(
    dataset: Dataset, against: Dataset, *, role: str | None = None, sampled: bool = False
) -> pl.DataFrame:
    """The numbers of `diff_report` for every conversation that both datasets have.

    Args:
        dataset: The teacher's scores.
        against: The student's.
        role: Compare the tokens of this role alone.
        sampled: Compare tokens alone of which it is known that a model generated them.

    Returns:
        `conversation_id`, then every number under its name in the JSON of `diff`, such as `gjs_0.5.upper`.

    Raises:
        InputError: The datasets cannot be compared.
    """
    wanted: dict[str, object] = {}
    if role is not None:
        wanted["role"] = role
    if sampled:
        wanted["is_sampled"] = True
    report = diff_report(dataset.root, against.root, by=["conversation_id", *wanted])
    table = group_table(report.by, [(row.group, row.flat()) for row in report.groups])
    frame = _frame(table)
    for name, value in wanted.items():
        frame = frame.filter(pl.col(name) == value)
    return frame.drop(*wanted)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
