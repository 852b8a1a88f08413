"""Sequences in rounds whose hidden states the disk has room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokscore.dataset.errors import TokscoreError
from tokscore.scoring import TokenSequence
from tokscore.scoring.exact.rounds import Rounds, StateSizes

SMALL = StateSizes(row_bytes=4, head_bytes=0)


def sequences_of(*n_rows: int) -> list[TokenSequence]:
    return [
        TokenSequence(key, np.zeros(n + 1, np.int32), np.ones(n, np.bool_) if n else np.zeros(0, np.bool_))
        for key, n in enumerate(n_rows)
    ]


def test_rounds_hold_what_fits_in_order_and_one_sequence_at_least(tmp_path: Path) -> None:
    rounds = Rounds(sequences_of(3, 0, 4, 2, 11, 1), tmp_path, SMALL, max_bytes=4 * 7)
    taken = [{first: each.key for first, each in placed.items()} for placed in iter(rounds.take, {})]
    assert taken == [{0: 0, 3: 2}, {0: 3}, {0: 4}, {0: 5}]


@pytest.mark.parametrize("sizes", [StateSizes(2**60, 0), StateSizes(4, 2**60)])
def test_a_disk_that_is_too_small_for_a_sequence_or_the_head_is_an_error(
    tmp_path: Path, sizes: StateSizes
) -> None:
    rounds = Rounds(sequences_of(3), tmp_path, sizes)
    with pytest.raises(
        TokscoreError, match=r"bytes are free; expected [\d,]+, for the hidden states of the 3 "
    ):
        rounds.take()
