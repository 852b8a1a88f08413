"""Score arrays as the Arrow columns of the score table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tokscore.scoring.engine import SequenceScores

    Array = np.ndarray[Any, np.dtype[Any]]


def score_columns(scores: SequenceScores | None, n_tokens: int) -> dict[str, pa.Array]:
    """The columns that `tables.SCORES` has beyond the token columns, by name.

    Args:
        scores: Rows about tokens 1 to n; None only where there is no token.
        n_tokens: Length of the columns; the first token, without context, is null in all of them.
    """
    if scores is None:
        return {
            "logprob": pa.nulls(n_tokens, pa.float32()),
            "rank": pa.nulls(n_tokens, pa.int32()),
            "entropy": pa.nulls(n_tokens, pa.float32()),
            "top_ids": pa.nulls(n_tokens, pa.list_(pa.int32())),
            "top_logprobs": pa.nulls(n_tokens, pa.list_(pa.float32())),
        }
    entropy = scores.entropy
    return {
        "logprob": _after_null(scores.logprobs),
        "rank": _after_null(scores.ranks),
        "entropy": pa.nulls(n_tokens, pa.float32()) if entropy is None else _after_null(entropy),
        "top_ids": _lists_after_null(scores.top_ids),
        "top_logprobs": _lists_after_null(scores.top_logprobs),
    }


def _first_only(n_tokens: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.zeros(n_tokens, np.bool_)
    mask[:1] = True
    return mask


def _after_null(values: Array) -> pa.Array:
    shifted = np.concatenate([np.zeros(1, values.dtype), values])
    return pa.array(shifted, mask=_first_only(len(shifted)))


def _lists_after_null(rows: Array) -> pa.Array:
    """A null, then one list per row of a matrix."""
    n_rows, width = rows.shape
    offsets = np.concatenate([[0], np.arange(n_rows + 1) * width]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(rows.ravel()), mask=pa.array(_first_only(n_rows + 1))
    )
