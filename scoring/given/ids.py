"""Given ids as matrices: a row of each for a row of scores, -1 where there are fewer than the widest has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]
    Floats = NDArray[np.float32]

NO_ID = -1


def stacked(given: Sequence[Ids | None], n_rows: Sequence[int]) -> Ids | None:
    """The rows of several matrices as one, int32 [rows, width]; None where no id is given.

    Args:
        given: A matrix for each sequence, None where it has none.
        n_rows: Rows of each.
    """
    width = max((ids.shape[1] for ids in given if ids is not None), default=0)
    if not width:
        return None
    rows = np.full((sum(n_rows), width), NO_ID, np.int32)
    start = 0
    for ids, n in zip(given, n_rows, strict=True):
        if ids is not None:
            rows[start : start + n, : ids.shape[1]] = ids
        start += n
    return rows


def united(ids: Ids, others: Ids) -> Ids:
    """Each row's ids, then those of another matrix that are not among them; of as many rows as `ids` has.

    Args:
        ids: int32 [rows, width], each once a row.
        others: int32 [rows or fewer, width], each once a row.
    """
    n = len(others)
    if np.array_equal(ids[:n], others):
        return ids
    is_new = (others >= 0) & ~np.isin(_keys(others), _keys(ids[:n])[ids[:n] >= 0])
    n_new = is_new.sum(1)
    more = np.full((len(ids), n_new.max(initial=0)), NO_ID, np.int32)
    more[:n][np.arange(more.shape[1]) < n_new[:, None]] = others[is_new]
    return np.concatenate([ids, more], axis=1) if more.size else ids


def values_at(wanted: Ids, ids: Ids, values: Floats) -> Floats:
    """Values of some ids of each row, float32 [rows, width], -inf to pad.

    Args:
        wanted: int32 [rows, width], each among the row's `ids`.
        ids: int32 [rows, more], each once a row.
        values: float32 [rows, more].
    """
    if np.array_equal(wanted, ids):
        return values
    keys = _keys(ids)[ids >= 0]
    order = np.argsort(keys)
    is_there = wanted >= 0
    found = np.full(wanted.shape, -np.inf, np.float32)
    at = order[np.searchsorted(keys[order], _keys(wanted)[is_there])]
    found[is_there] = values[ids >= 0][at]
    return found


def _keys(ids: Ids) -> NDArray[np.int64]:
    """A number for each row and id."""
    return (np.arange(len(ids), dtype=np.int64)[:, None] << 32) + ids
