"""Exact values beside the tables of `diff -o`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tokscore.analytics.comparison.tables import write_groups
from tokscore.analytics.exact.columns import exact_schema
from tokscore.analytics.groups.tables import group_table
from tokscore.dataset.files import check_is_new_folder
from tokscore.dataset.stores.path import is_store
from tokscore.dataset.writing import put_in_place, temporary_name

if TYPE_CHECKING:
    from tokscore.analytics.comparison.diff import DiffReport
    from tokscore.analytics.exact.report import ExactReport

EXACT_NAME = "exact.parquet"


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder that becomes `folder` at the end; what fails or is interrupted leaves neither.

    Raises:
        UsageError: `folder` is a file, or holds something.
    """
    check_is_new_folder(folder)
    temporary = temporary_name(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        if is_store(folder):
            for path in sorted(temporary.iterdir()):
                put_in_place(path, folder / path.name)
        else:
            temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_exact(folder: Path, report: DiffReport, exact: ExactReport) -> None:
    """Add exact values to what `diff_report` wrote: a row per token, and columns to the groups."""
    rows = [(row.group, row.flat() | exact.flat_of(row.group)) for row in report.groups]
    write_groups(folder, group_table(report.by, rows))
    options = {"compression": "zstd", "compression_level": 3}
    with pq.ParquetWriter(folder / EXACT_NAME, exact_schema(exact.parts.alphas), **options) as writer:
        for table in exact.parts.tables():
            # Conversations stay in one group of rows.
            writer.write_table(table, row_group_size=max(1, table.num_rows))
