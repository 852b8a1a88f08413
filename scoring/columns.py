"""Score arrays as the Arrow columns of the score table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tokscore.scoring.engines.contract import SequenceScores

    Array = np.ndarray[Any, np.dtype[Any]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]

# An Arrow list of lists counts its values in 32 bits.
MAX_VALUES = 2**30


class ScoredTokens(NamedTuple):
    """The tokens of one conversation, and what is known of them.

    Attributes:
        n_tokens: All of them; the first, without context, has no scores.
        scores: A row for each wanted token; None where there is none.
        wanted: bool [n_tokens-1], whether token t+1 has a row; None where all have. The others are null.
    """

    n_tokens: int
    scores: SequenceScores | None
    wanted: Mask | None = None


def score_columns(rows: Sequence[ScoredTokens]) -> dict[str, pa.ChunkedArray]:
    """The columns that `tables.SCORES` has beyond the token columns, by name.

    Args:
        rows: Conversations, at least one.
    """
    blocks = [_block_columns(block) for block in _blocks(rows)]
    return {name: pa.chunked_array([block[name] for block in blocks]) for name in blocks[0]}


def _blocks(rows: Sequence[ScoredTokens]) -> Iterator[Sequence[ScoredTokens]]:
    """Conversations in a row whose lists hold up to `MAX_VALUES` values, or one that has more."""
    start = n_values = 0
    for stop, each in enumerate(rows):
        n = 0 if each.scores is None else each.scores.top_ids.size
        if stop > start and n_values + n > MAX_VALUES:
            yield rows[start:stop]
            start, n_values = stop, 0
        n_values += n
    yield rows[start:]


def _block_columns(rows: Sequence[ScoredTokens]) -> dict[str, pa.Array]:
    is_null = np.concatenate([_nulls(each) for each in rows])
    scores = [each.scores for each in rows if each.scores is not None]
    if not scores:
        n_tokens = len(is_null)
        return {
            "logprob": pa.nulls(n_tokens, pa.float32()),
            "rank": pa.nulls(n_tokens, pa.int32()),
            "entropy": pa.nulls(n_tokens, pa.float32()),
            "top_ids": pa.nulls(n_tokens, pa.list_(pa.int32())),
            "top_logprobs": pa.nulls(n_tokens, pa.list_(pa.float32())),
        }
    entropies = [each.entropy for each in scores]
    has_entropy = np.repeat([each is not None for each in entropies], [len(each.ranks) for each in scores])
    no_entropy = is_null.copy()
    no_entropy[~is_null] = ~has_entropy
    given = [each for each in entropies if each is not None]
    offsets = np.zeros(len(is_null) + 1, np.int32)
    widths = np.repeat([each.top_ids.shape[1] for each in scores], [len(each.ranks) for each in scores])
    offsets[1:][~is_null] = widths
    np.cumsum(offsets, out=offsets)
    return {
        "logprob": _spread(np.concatenate([each.logprobs for each in scores]), is_null),
        "rank": _spread(np.concatenate([each.ranks for each in scores]), is_null),
        "entropy": _spread(np.concatenate(given) if given else np.zeros(0, np.float32), no_entropy),
        "top_ids": _lists([each.top_ids for each in scores], offsets, is_null),
        "top_logprobs": _lists([each.top_logprobs for each in scores], offsets, is_null),
    }


def _nulls(each: ScoredTokens) -> Mask:
    is_null = np.full(each.n_tokens, each.scores is None)
    is_null[:1] = True
    if each.scores is not None and each.wanted is not None:
        is_null[1:] = ~each.wanted
    return is_null


def _spread(values: Array, is_null: Mask) -> pa.Array:
    """The values at the positions that are not null."""
    spread = np.zeros(len(is_null), values.dtype)
    spread[~is_null] = values
    return pa.array(spread, mask=is_null)


def _lists(matrices: Sequence[Array], offsets: Array, is_null: Mask) -> pa.Array:
    """One list per row of the matrices, at the positions that are not null."""
    values = np.concatenate([matrix.ravel() for matrix in matrices])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(is_null))
