"""Whether the tables of a dataset belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.rendering.dataset import PLAN_KEY, Dataset
from tokscore.rendering.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def check_tables(dataset: Dataset) -> None:
    """Refuse a dataset of which a small table, or the token table of a part, is that of another one.

    Raises:
        InputError: A plan hash, or the number of tokens, is another.
    """
    for name in ("spans", "messages", "conversations"):
        for path in dataset.files(name):
            plan = (pq.read_metadata(path).metadata or {}).get(PLAN_KEY, b"").decode()
            if plan != dataset.manifest.plan_hash:
                raise InputError(
                    f"{path} belongs to another plan than the manifest. Write the dataset again."
                )
    files = dataset.files(dataset.manifest.kind.value)
    for path, conversations in zip(files, dataset.files("conversations"), strict=True):
        n_tokens = pc.sum(pq.read_table(conversations, columns=["n_tokens"])["n_tokens"]).as_py() or 0
        n_rows = pq.read_metadata(path).num_rows
        if n_rows != n_tokens:
            raise InputError(
                f"{path} has {n_rows} rows; expected {n_tokens}, the tokens of its conversations. "
                "Write the dataset again."
            )


def damaged(path: Path, error: Exception) -> InputError:
    """What to raise where a Parquet file cannot be read."""
    return InputError(f"{path} is damaged ({error}). Write the dataset again.")
