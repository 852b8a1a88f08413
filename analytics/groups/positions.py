"""Where a token stands in its message or in the answer that it is part of, in bins that double."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tokscore.analytics.groups.codes import Codes, Encoded
from tokscore.analytics.groups.grouping import GroupValue

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

NOWHERE = -1


def message_positions(table: pa.Table) -> Codes:
    """Index of every row among the tokens of its message, `NOWHERE` for those of no message."""
    positions = table["position_in_message"].to_numpy().astype(np.int64)
    return np.where(table["message_index"].to_numpy() < 0, NOWHERE, positions)


def answer_positions(is_sampled: pa.ChunkedArray, starts: NDArray[np.int64]) -> Codes:
    """Index of every row in its answer, `NOWHERE` where it is not known to be sampled.

    An answer is a run of sampled tokens of one conversation: a stop that a template prints as the beginning
    of the next message is the last token of the answer that it ends.

    Args:
        is_sampled: Of all rows of whole conversations; null where it cannot be told.
        starts: First row of each conversation.
    """
    sampled = pc.fill_null(is_sampled, False).to_numpy()
    rows = np.arange(len(sampled))
    goes_on = np.append(False, sampled[:-1])[: len(sampled)]
    goes_on[starts[starts < len(sampled)]] = False
    firsts = np.maximum.accumulate(np.where(sampled & ~goes_on, rows, NOWHERE)) if len(rows) else rows
    return np.where(sampled, rows - firsts, NOWHERE)


def encode_bins(positions: Codes) -> Encoded:
    """The bin of every position by its first: 0, 1, 2 (to 3), 4 (to 7) and so on; None for `NOWHERE`."""
    # The exponent of frexp is the number of binary digits.
    codes = np.where(positions < 0, 0, np.frexp(positions.astype(np.float64))[1] + 1).astype(np.int64)
    values: list[GroupValue] = [None, 0, *(1 << n for n in range(int(codes.max(initial=1)) - 1))]
    return Encoded(codes, values)
