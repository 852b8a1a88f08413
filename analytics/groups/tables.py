"""A table with a row per group: what its tokens share, then every number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tokscore.analytics.groups.grouping import BINNED, Grouping, GroupKey
from tokscore.dataset.schema import TOKENS

# Counts, whose names do not say so; every `n_...` and `..._n_infinite` is one as well.
_COUNTS = ("tokens_per_message_min", "tokens_per_message_max", "tokens_per_message_p95")


def group_table(by: Grouping | None, rows: Sequence[tuple[GroupKey, Mapping[str, object]]]) -> pa.Table:
    """The rows as a table.

    Args:
        by: What the groups share; None where rows have no group.
        rows: Key and numbers of each group.

    Returns:
        The columns of `by` with the types that the token table has, metadata as text where its values are of
        several kinds; then the numbers by name: counts int64, `is_...` bool, the rest float64.
    """
    columns = {} if by is None else _group_columns(by, [key for key, _ in rows])
    for name in dict.fromkeys(name for _, numbers in rows for name in numbers):
        if name not in columns:
            columns[name] = pa.array([numbers.get(name) for _, numbers in rows], _type_of(name))
    return pa.table(columns)


def _type_of(name: str) -> pa.DataType:
    last = name.rpartition(".")[2]
    if last.startswith("is_"):
        return pa.bool_()
    is_count = last.startswith("n_") or last.endswith("_n_infinite") or name in _COUNTS
    return pa.int64() if is_count else pa.float64()


def _group_columns(by: Grouping, keys: Sequence[GroupKey]) -> dict[str, pa.Array]:
    columns = {}
    for index, name in enumerate(by.names):
        values = [by.values(key)[index] for key in keys]
        if name in by.token_columns:
            columns[name] = pa.array(values, TOKENS.field(name).type)
        elif name in BINNED:
            columns[name] = pa.array(values, pa.int32())
        else:
            columns[name] = _metadata_column(values)
    return columns


def _metadata_column(values: Collection[Any]) -> pa.Array:  # Any: JSON values
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1:
        return pa.array(values)
    return pa.array([None if value is None else str(value) for value in values], pa.string())
