"""Score arrays as the Arrow columns of the score table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokscore.dataset.schema import SCORE_COLUMNS, Column

if TYPE_CHECKING:
    from tokscore.scoring.engines.contract import SequenceScores

    Array = np.ndarray[Any, np.dtype[Any]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]

# Columns with lists of several lengths.
GIVEN = frozenset({"at_ids", "at_logprobs"})
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
    """The columns `schema.SCORE_COLUMNS` by name.

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
        if each.scores is not None and each.scores.at_ids is not None:
            n = max(n, each.scores.at_ids.size)
        if stop > start and n_values + n > MAX_VALUES:
            yield rows[start:stop]
            start, n_values = stop, 0
        n_values += n
    yield rows[start:]


def _block_columns(rows: Sequence[ScoredTokens]) -> dict[str, pa.Array]:
    is_null = np.concatenate([_nulls(each) for each in rows])
    scores = [each.scores for each in rows if each.scores is not None]
    return {column.name: _block_column(column, scores, is_null) for column in SCORE_COLUMNS}


def _block_column(column: Column, scores: Sequence[SequenceScores], is_null: Mask) -> pa.Array:
    """One column; null too where an engine does not give it."""
    arrays = [getattr(each, column.attribute) for each in scores]
    given = [array for array in arrays if array is not None]
    if not given:
        return pa.nulls(len(is_null), column.dtype)
    n_rows = [len(each) for each in scores]
    if len(given) < len(arrays):
        is_null = is_null.copy()
        is_null[~is_null] = ~np.repeat([array is not None for array in arrays], n_rows)
    if not pa.types.is_list(column.dtype):
        return _spread(np.concatenate(given), is_null)
    if column.name in GIVEN:
        # Of the ids that were given, -1 is none.
        is_there = [each.at_ids >= 0 for each in scores if each.at_ids is not None]
        lengths = np.concatenate([each.sum(1) for each in is_there])
        given = [array[there] for array, there in zip(given, is_there, strict=True)]
    else:
        lengths = np.repeat([array.shape[1] for array in given], [len(array) for array in given])
    return _lists(given, lengths, is_null)


def _nulls(each: ScoredTokens) -> Mask:
    is_null = np.full(each.n_tokens, each.scores is None)
    is_null[:1] = True
    if each.scores is not None and each.wanted is not None:
        is_null[1:] = ~each.wanted
    return is_null


def _lists(values: Sequence[Array], lengths: Array, is_null: Mask) -> pa.Array:
    """Lists of some lengths, one after the other, at the positions that are not null."""
    offsets = np.zeros(len(is_null) + 1, np.int32)
    offsets[1:][~is_null] = lengths
    np.cumsum(offsets, out=offsets)
    flat = np.concatenate([each.ravel() for each in values])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), mask=pa.array(is_null))


def _spread(values: Array, is_null: Mask) -> pa.Array:
    """The values at the positions that are not null."""
    spread = np.zeros(len(is_null), values.dtype)
    spread[~is_null] = values
    return pa.array(spread, mask=is_null)
