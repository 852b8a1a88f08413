"""The columns that the tokens of a page are grouped by: ranges of numbers beside role and source."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.groups.grouping import GroupKey

_ENTROPIES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0)
_POSITIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MESSAGES = (*range(10), 10, 20, 50, 100)


class PageGrouping(StrEnum):
    """Property that the tokens of one row share."""

    ROLE = "role"
    SOURCE = "source"
    POSITION = "position in message"
    MESSAGE = "message index"
    ENTROPY = "entropy (nats)"


# Where the ranges begin; the last is open.
_EDGES: dict[PageGrouping, tuple[float, ...]] = {
    PageGrouping.POSITION: _POSITIONS,
    PageGrouping.MESSAGE: _MESSAGES,
    PageGrouping.ENTROPY: _ENTROPIES,
}
# Token columns that `group_column` needs.
GROUPED_COLUMNS = ("role", "source", "position_in_message", "message_index", "entropy")


def group_column(table: pa.Table, by: PageGrouping) -> pa.ChunkedArray:
    """The group of every token: a name, or the number of a range; null for no message, or an unknown value.

    Args:
        table: Token rows with `GROUPED_COLUMNS`.
        by: The columns that make the groups.
    """
    if by in (PageGrouping.ROLE, PageGrouping.SOURCE):
        return table[by.value]
    if by is PageGrouping.ENTROPY:
        values: FloatArray = table["entropy"].cast(pa.float64()).to_numpy()
        is_unknown: NDArray[np.bool_] = np.isnan(values)
    else:
        message = table["message_index"].to_numpy()
        values = table["position_in_message"].to_numpy() if by is PageGrouping.POSITION else message
        is_unknown = message < 0
    ranges = np.searchsorted(_EDGES[by], values, side="right") - 1
    return pa.chunked_array([pa.array(np.maximum(ranges, 0), mask=is_unknown)])


def page_label(key: GroupKey, by: PageGrouping) -> str:
    """A group as the page names it."""
    if key is None:
        return "(unknown)" if by is PageGrouping.ENTROPY else "(no message)"
    edges = _EDGES.get(by)
    if edges is None or not isinstance(key, int):
        return str(key)
    low = edges[key]
    if key + 1 == len(edges):
        return f"{low:g} and more"
    high = edges[key + 1]
    if by is PageGrouping.ENTROPY:
        return f"{low:g} to {high:g}"
    return f"{low:g}" if high - low == 1 else f"{low:g} to {high - 1:g}"
