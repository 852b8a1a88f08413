"""Parquet tables of a comparison: a row per token, and a row per group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.comparison.compare import ComparedBatch
from tokscore.analytics.divergence.measures import Measure, intervals, points
from tokscore.analytics.groups.grouping import Grouping
from tokscore.dataset.files import check_is_new_folder, check_is_text
from tokscore.dataset.schema import TOKENS
from tokscore.dataset.writing import put_in_place, temporary_name

TOKENS_NAME, GROUPS_NAME = "tokens.parquet", "groups.parquet"


def named_field(
    name: str, dtype: pa.DataType, description: str, unit: str = "", *, nullable: bool = False
) -> pa.Field:
    """A column that says what it is in the file."""
    metadata = {"description": description} | ({"unit": unit} if unit else {})
    return pa.field(name, dtype, nullable=nullable, metadata=metadata)


def _point_field(measure: Measure) -> pa.Field:
    return named_field(measure.name, pa.float64(), f"{measure.meaning}.", measure.unit)


def _interval_fields(measure: Measure) -> tuple[pa.Field, pa.Field]:
    lower, upper = f"{measure.meaning}: lower limit.", "Upper limit; null where there is none."
    return (
        named_field(f"{measure.name}_lower", pa.float64(), lower, measure.unit),
        named_field(f"{measure.name}_upper", pa.float64(), upper, measure.unit, nullable=True),
    )


def token_schema(by: Grouping, alphas: Sequence[float], *, is_aligned: bool = False) -> pa.Schema:
    """The columns of `token_table`: whose token it is, the columns of `by`, and every measure.

    Where only the content is compared (`is_aligned`), `position` is the teacher's.
    """
    names = dict.fromkeys(["conversation_id", "branch", "position", "token_id", *by.token_columns])
    int32 = pa.int32()
    # Ranks and choices stand between what is known of the token and what is known of the lists.
    shown, others = ([row for row in points(alphas) if (row.table is None) is last] for last in (False, True))
    fields = [
        *(TOKENS.field(name) for name in names),
        *(_point_field(measure) for measure in shown),
        named_field(
            "teacher_rank", int32, "Teacher's rank of the token; null where it has none.", nullable=True
        ),
        named_field("student_rank", int32, "Student's.", nullable=True),
        named_field("teacher_top_id", int32, "The teacher's most likely id; -1 without a list."),
        named_field("student_top_id", int32, "The student's."),
        *(_point_field(measure) for measure in others),
        *(field for measure in intervals(alphas) for field in _interval_fields(measure)),
    ]
    if is_aligned:
        fields.append(
            named_field("student_position", int32, "Where the student's token is; with `align=content`.")
        )
    return pa.schema(fields)


def token_table(batch: ComparedBatch, by: Grouping) -> pa.Table:
    """A row for each compared token, schema `token_schema`."""
    rows, conversations = batch.rows, batch.conversations
    keys = [place.key for place in batch.places]
    columns: dict[str, Any] = {
        "conversation_id": pa.array([key[0] for key in keys], pa.string()).take(pa.array(conversations)),
        "branch": pa.array(np.array([key[1] for key in keys], np.int32)[conversations]),
        "position": pa.array(batch.positions.astype(np.int32)),
    }
    if batch.alignment is not None:
        columns["student_position"] = batch.student_positions.astype(np.int32)
    for name in dict.fromkeys(["token_id", *by.token_columns]):
        if name not in columns:
            column = batch.attribution[name].take(pa.array(rows))
            is_coded = pa.types.is_dictionary(column.type)
            columns[name] = column.cast(column.type.value_type) if is_coded else column
    columns |= {
        "teacher_rank": pa.array(batch.teacher_ranks, from_pandas=True).cast(pa.int32()),
        "student_rank": pa.array(batch.student_ranks, from_pandas=True).cast(pa.int32()),
        "teacher_top_id": batch.teacher_top,
        "student_top_id": batch.student_top,
    }
    measures = batch.measures
    columns |= {measure.name: measures[measure.name] for measure in points(measures.alphas)}
    for measure in intervals(measures.alphas):
        lower, upper = (np.ascontiguousarray(measures[column]) for column in measure.columns)
        columns[f"{measure.name}_lower"] = lower
        columns[f"{measure.name}_upper"] = pa.array(upper, mask=np.isinf(upper))
    schema = token_schema(by, measures.alphas, is_aligned=batch.alignment is not None)
    return pa.table(columns, schema=schema)


class TokenTable:
    """Writes rows aside, and renames the file when it is whole; nothing without a folder."""

    def __init__(self, folder: Path | None, name: str = TOKENS_NAME) -> None:
        """Open the table of this name.

        Raises:
            UsageError: `folder` is a file, or holds something.
        """
        self._path = None if folder is None else folder / name
        self._writer: pq.ParquetWriter | None = None
        if folder is None:
            return
        check_is_text(folder)
        check_is_new_folder(folder)
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
            put_in_place(temporary_name(self._path), self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None and self._path is not None:
            self._writer.close()
            temporary_name(self._path).unlink(missing_ok=True)


def write_groups(folder: Path, table: pa.Table) -> None:
    """Write what `group_table` made."""
    path = folder / GROUPS_NAME
    pq.write_table(table, temporary_name(path), compression="zstd", compression_level=3)
    put_in_place(temporary_name(path), path)
