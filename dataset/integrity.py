"""Whether the tables of a dataset belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def check_tables(dataset: Dataset) -> int:
    """Refuse a dataset of which a small table, or the token table of a part, is that of another one.

    Returns:
        How many conversations have tokens.

    Raises:
        InputError: A plan hash, or the number of tokens, is another.
    """
    for name in ("spans", "messages", "conversations"):
        for path in dataset.files(name):
            if dataset.footer(path).plan_hash != dataset.manifest.plan_hash:
                raise InputError(
                    f"{path} belongs to another plan than the manifest. Write the dataset again."
                )
    n_with_tokens = 0
    files = dataset.files(dataset.manifest.kind.value)
    for path, conversations in zip(files, dataset.files("conversations"), strict=True):
        lengths = _conversation_lengths(conversations)
        n_with_tokens += int(np.count_nonzero(lengths))
        n_tokens = int(lengths.sum())
        n_rows = dataset.footer(path).n_rows
        if n_rows != n_tokens:
            raise InputError(
                f"{path} has {n_rows} rows; expected {n_tokens}, the tokens of its conversations. "
                "Write the dataset again."
            )
    return n_with_tokens


def _conversation_lengths(path: Path) -> NDArray[np.int64]:
    """Tokens of each conversation of a part of the conversations table."""
    try:
        with opened(path) as file:
            lengths = file.read(columns=["n_tokens"], use_threads=False)["n_tokens"]
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(path, error) from error
    return np.asarray(lengths.to_numpy(), np.int64)


def opened(path: Path, **options: Any) -> pq.ParquetFile:  # Any: of pyarrow
    """A Parquet file whose pages are checked as they are read.

    Raises:
        InputError: It is damaged.
    """
    try:
        return pq.ParquetFile(path, page_checksum_verification=True, **options)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> InputError:
    """The error to raise where a Parquet file cannot be read."""
    return InputError(f"{path} is damaged ({error}). Write the dataset again.")
