"""What is wanted of a prompt, as a request of vLLM carries it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokscore.scoring.engines.contract import TokenSequence

# Key of a request's `SamplingParams.extra_args`; its value is None where all rows are wanted, otherwise what
# `mark_of` makes of a sequence.
MARK = "tokscore"


# Another key: the ids that are given for each wanted row, as `packed` makes it; absent where there are none.
GIVEN = "tokscore_given"


# Runs of wanted positions, positions of other ids, and these.
Mark = Sequence[Sequence[int]]


# Among other ids: the token that follows the position.
OWN = -1


def mark_of(sequence: TokenSequence) -> Mark | None:
    """What is wanted of a sequence: runs of its own positions, then positions and ids of others.

    The runs are half-open, [start, stop, start, stop, ...]. None where all of its own tokens are wanted.
    """
    others = sequence.others
    if sequence.wanted is None and others is None:
        return None
    runs = [0, len(sequence.token_ids) - 1] if sequence.wanted is None else runs_of(sequence.wanted)
    if others is None:
        return [runs, [], []]
    return [runs, others.positions.tolist(), others.token_ids.tolist()]


def wanted_of(mark: Mark) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Positions of the rows, and the ids to be scored there, `OWN` for the token that follows."""
    runs, positions, ids = mark
    pairs = np.asarray(runs, np.int64).reshape(-1, 2)
    own = np.concatenate([np.empty(0, np.int64), *(np.arange(start, stop) for start, stop in pairs)])
    if not positions:
        return own, None
    wanted = np.concatenate([own, np.asarray(positions, np.int64)])
    order = np.argsort(wanted, kind="stable")
    others = np.concatenate([np.full(len(own), OWN, np.int64), np.asarray(ids, np.int64)])
    return wanted[order], others[order]


def runs_of(wanted: NDArray[np.bool_]) -> list[int]:
    """The true positions as half-open runs [start, stop, start, stop, ...]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    return [int(edge) for edge in edges]


def packed(given: NDArray[np.int32]) -> tuple[int, bytes]:
    """Given ids [rows, width] as what a request can carry: the width, and the ids as little-endian bytes."""
    return given.shape[1], given.astype("<i4").tobytes()


def unpacked(given: tuple[int, bytes]) -> NDArray[np.int32]:
    """The given ids that were packed."""
    width, ids = given
    return np.frombuffer(ids, "<i4").reshape(-1, width) if width else np.empty((0, 0), np.int32)
