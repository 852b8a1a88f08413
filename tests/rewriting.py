"""Datasets that a test changes behind the back of tokscore."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.table_files import CHECKSUMS


def without_checksums(root: Path) -> Path:
    """The dataset as older versions wrote it, so that what is in its files is looked at."""
    shutil.rmtree(root / CHECKSUMS, ignore_errors=True)
    return root


def rewrite(table: pa.Table, path: Path) -> None:
    """Write a file of a dataset again."""
    without_checksums(path.parent if path.name == "vocab.parquet" else path.parents[1])
    pq.write_table(table, path)
