"""Conversations that say the same of a group: of a prompt that many begin with, all but one are copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def copies_together(
    sums: Mapping[str, FloatArray], n_tokens: NDArray[np.int64], is_drawn: NDArray[np.bool_] | None = None
) -> tuple[dict[str, FloatArray], NDArray[np.int64]]:
    """The sums with copies added to the conversation that they are copies of.

    Copies have as many tokens and all sums in common, to the last bit: a system prompt that all conversations
    share is one observation, however many there are of it. Where all sums are 0, nothing says so. Sampled
    answers are drawn one by one, and stay as many where they are equal: those of one sure token, of a logprob
    of 0, would be a single one otherwise.

    Args:
        sums: By name, shape [conversations].
        n_tokens: Shape [conversations].
        is_drawn: Whether some of the tokens are known to be sampled, shape [conversations]; None where
            nothing is known of it.

    Returns:
        Sums and tokens, shape [conversations that are none's copy].
    """
    said = np.zeros(len(n_tokens), np.bool_)
    for column in sums.values():
        said |= column != 0
    if is_drawn is not None:
        said &= ~is_drawn
    rows = np.flatnonzero(said)
    codes = np.zeros(len(rows), np.int64)
    for column in (*sums.values(), n_tokens.astype(np.float64)):
        values = np.unique(column[rows], return_inverse=True)[1]
        both = codes * (values.max(initial=0) + 1) + values
        _, codes, counts = np.unique(both, return_inverse=True, return_counts=True)
        is_several = counts[codes] > 1
        rows, codes = rows[is_several], codes[is_several]
        if not len(rows):
            return dict(sums), n_tokens
    _, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    n_copies = np.ones(len(n_tokens), np.int64)
    n_copies[rows] = 0
    n_copies[rows[firsts]] = counts
    kept = n_copies > 0
    return {name: column[kept] * n_copies[kept] for name, column in sums.items()}, (n_tokens * n_copies)[kept]
