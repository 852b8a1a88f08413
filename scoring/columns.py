"""Score arrays as the Arrow columns of the score table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tokscore.scoring.engine import SequenceScores

    Array = np.ndarray[Any, np.dtype[Any]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]


def score_columns(
    scores: SequenceScores | None, n_tokens: int, wanted: Mask | None = None
) -> dict[str, pa.Array]:
    """The columns that `tables.SCORES` has beyond the token columns, by name.

    Args:
        scores: A row for each wanted token; None where there is none.
        n_tokens: Length of the columns; the first token, without context, is null in all of them.
        wanted: bool [n_tokens-1], whether token t+1 has a row; None where all have. The others are null.
    """
    if scores is None:
        return {
            "logprob": pa.nulls(n_tokens, pa.float32()),
            "rank": pa.nulls(n_tokens, pa.int32()),
            "entropy": pa.nulls(n_tokens, pa.float32()),
            "top_ids": pa.nulls(n_tokens, pa.list_(pa.int32())),
            "top_logprobs": pa.nulls(n_tokens, pa.list_(pa.float32())),
        }
    is_null = np.zeros(n_tokens, np.bool_)
    is_null[:1] = True
    if wanted is not None:
        is_null[1:] = ~wanted
    entropy = scores.entropy
    return {
        "logprob": _spread(scores.logprobs, is_null),
        "rank": _spread(scores.ranks, is_null),
        "entropy": pa.nulls(n_tokens, pa.float32()) if entropy is None else _spread(entropy, is_null),
        "top_ids": _lists(scores.top_ids, is_null),
        "top_logprobs": _lists(scores.top_logprobs, is_null),
    }


def _spread(values: Array, is_null: Mask) -> pa.Array:
    """The values at the positions that are not null."""
    spread = np.zeros(len(is_null), values.dtype)
    spread[~is_null] = values
    return pa.array(spread, mask=is_null)


def _lists(rows: Array, is_null: Mask) -> pa.Array:
    """One list per row of a matrix, at the positions that are not null."""
    offsets = np.concatenate([[0], np.cumsum(~is_null) * rows.shape[1]]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()), mask=pa.array(is_null))
