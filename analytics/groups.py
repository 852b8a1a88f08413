"""What the tokens of a report can be grouped by."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.rendering.dataset import Dataset
from tokscore.rendering.errors import UsageError

# The value that tokens of one group share; None for tokens of no message, or where it cannot be told.
GroupKey = str | int | bool | None


class GroupBy(StrEnum):
    """Token columns that make groups."""

    ROLE = "role"
    MESSAGE_INDEX = "message_index"
    SOURCE = "source"
    IS_CONTENT = "is_content"
    IS_SAMPLED = "is_sampled"


def parse_group_by(name: str) -> GroupBy:
    """The member called `name`.

    Raises:
        UsageError: There is none.
    """
    try:
        return GroupBy(name)
    except ValueError:
        raise UsageError(f"cannot group by {name!r}; expected {', '.join(GroupBy)}.") from None


def group_label(key: GroupKey, by: GroupBy) -> str:
    """The key as tables print it."""
    if key is None and by is GroupBy.IS_SAMPLED:
        return "(unknown)"
    if key is None or key == -1:
        return "(no message)"
    return str(key).lower() if isinstance(key, bool) else str(key)


def group_order(key: GroupKey) -> tuple[bool, int, str]:
    """Sorts keys by number or alphabet, those of no message last."""
    number = key if isinstance(key, int) else 0
    return key is None or key == -1, number, str(key)


def local_groups(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[GroupKey]]:
    """A code for each row, and the key that each code stands for."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def message_counts_by(dataset: Dataset, by: GroupBy) -> dict[GroupKey, int]:
    """Number of messages in each group, rendered or not; empty where a group is no set of messages."""
    if by not in {GroupBy.ROLE, GroupBy.MESSAGE_INDEX}:
        return {}
    messages = pl.scan_parquet(dataset.files("messages"))
    counts = messages.group_by(by.value).agg(pl.len()).collect(engine="streaming")
    return dict(counts.iter_rows())
