"""Parquet tables of a comparison: a row per token, and a row per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.comparison import ComparedBatch
from tokscore.analytics.groups import Grouping, GroupKey
from tokscore.analytics.measures import interval_names
from tokscore.rendering.errors import UsageError
from tokscore.rendering.parts import temporary_name

TOKENS_NAME, GROUPS_NAME = "tokens.parquet", "groups.parquet"


def token_table(batch: ComparedBatch, by: Grouping) -> pa.Table:
    """A row for each compared token: its place, the columns of `by`, and every measure.

    Where only the content is compared, `position` is the teacher's and `student_position` the student's.
    Logprobs, ranks and intervals are float64, an upper limit that is not there is null.
    """
    rows, conversations = batch.rows, batch.conversations
    keys = [place.key for place in batch.places]
    columns: dict[str, Any] = {
        "conversation_id": pa.array([key[0] for key in keys], pa.string()).take(pa.array(conversations)),
        "branch": pa.array(np.array([key[1] for key in keys], np.int32)[conversations]),
        "position": pa.array(batch.positions.astype(np.int32)),
    }
    if batch.alignment is not None:
        columns["student_position"] = pa.array(batch.student_positions.astype(np.int32))
    for name in dict.fromkeys(["token_id", *by.token_columns]):
        if name not in columns:
            column = batch.attribution[name].take(pa.array(rows))
            is_coded = pa.types.is_dictionary(column.type)
            columns[name] = column.cast(column.type.value_type) if is_coded else column
    columns |= {
        "teacher_logprob": batch.teacher_logprobs,
        "student_logprob": batch.student_logprobs,
        "log_ratio": batch.teacher_logprobs - batch.student_logprobs,
        "delta_p": np.exp(batch.teacher_logprobs) - np.exp(batch.student_logprobs),
        "teacher_rank": pa.array(batch.teacher_ranks, from_pandas=True).cast(pa.int32()),
        "student_rank": pa.array(batch.student_ranks, from_pandas=True).cast(pa.int32()),
        "teacher_top_id": batch.teacher_top,
        "student_top_id": batch.student_top,
        "unresolved_teacher": batch.limits.unresolved_teacher,
        "unresolved_student": batch.limits.unresolved_student,
    }
    limits = np.delete(batch.limits.columns, (10, 11), axis=1)
    for index, name in enumerate(interval_names(batch.limits.alphas)):
        upper = limits[:, 2 * index + 1]
        columns[f"{name}_lower"] = np.ascontiguousarray(limits[:, 2 * index])
        columns[f"{name}_upper"] = pa.array(upper, mask=np.isinf(upper))
    return pa.table(columns)


class TokenTable:
    """Writes the rows of tokens aside, and renames the file when it is whole; nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        """Open the table.

        Raises:
            UsageError: `folder` is a file, or holds something.
        """
        self._path = None if folder is None else folder / TOKENS_NAME
        self._writer: pq.ParquetWriter | None = None
        if folder is None:
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty; expected a new directory. Choose another with -o.")
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def write(self, table: pa.Table | None) -> None:
        """Append rows."""
        if table is None or self._path is None:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                temporary_name(self._path), table.schema, compression="zstd", compression_level=3
            )
        self._writer.write_table(table)

    def finish(self) -> None:
        """Make the file visible."""
        if self._writer is not None and self._path is not None:
            self._writer.close()
            self._writer = None
            temporary_name(self._path).replace(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None and self._path is not None:
            self._writer.close()
            temporary_name(self._path).unlink(missing_ok=True)


def write_groups(
    folder: Path, by: Grouping, rows: Sequence[tuple[GroupKey, Mapping[str, float | int | None]]]
) -> None:
    """Write a row per group: the columns of `by`, then every number by its dotted name."""
    columns: dict[str, list[Any]] = {}
    for index, name in enumerate(by.names):
        columns[name] = [by.values(key)[index] for key, _ in rows]
        if len({type(value) for value in columns[name] if value is not None}) > 1:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
    for name in dict.fromkeys(name for _, values in rows for name in values):
        columns[name] = [values.get(name) for _, values in rows]
    table = pa.table(columns)
    is_empty = [pa.types.is_null(field.type) for field in table.schema]
    schema = pa.schema(
        [
            field.with_type(pa.float64()) if empty else field
            for field, empty in zip(table.schema, is_empty, strict=True)
        ]
    )
    path = folder / GROUPS_NAME
    pq.write_table(table.cast(schema), temporary_name(path), compression="zstd", compression_level=3)
    temporary_name(path).replace(path)
