from __future__ import annotations

import numpy as np
import pytest

from tokscore.rendering.tables import SCORES
from tokscore.scoring import SequenceScores
from tokscore.scoring.columns import score_columns


def scores(n_rows: int, top_k: int, *, with_entropy: bool) -> SequenceScores:
    values = np.arange(n_rows * top_k).reshape(n_rows, top_k)
    return SequenceScores(
        logprobs=-np.arange(n_rows, dtype=np.float32),
        ranks=np.arange(1, n_rows + 1, dtype=np.int32),
        top_ids=values.astype(np.int32),
        top_logprobs=-values.astype(np.float32),
        entropy=np.full(n_rows, 0.5, np.float32) if with_entropy else None,
    )


def test_the_first_token_is_null_and_the_rest_moves_down() -> None:
    columns = score_columns(scores(2, 2, with_entropy=True), 3)
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "logprob": [None, 0.0, -1.0],
        "rank": [None, 1, 2],
        "entropy": [None, 0.5, 0.5],
        "top_ids": [None, [0, 1], [2, 3]],
        "top_logprobs": [None, [0.0, -1.0], [-2.0, -3.0]],
    }


def test_without_top_k_the_lists_are_empty() -> None:
    columns = score_columns(scores(2, 0, with_entropy=False), 3)
    assert columns["top_ids"].to_pylist() == [None, [], []]
    assert columns["entropy"].to_pylist() == [None, None, None]


@pytest.mark.parametrize("n_tokens", [0, 1, 4])
def test_types_are_those_of_the_score_table(n_tokens: int) -> None:
    found = None if n_tokens == 0 else scores(n_tokens - 1, 3, with_entropy=True)
    for name, column in score_columns(found, n_tokens).items():
        assert column.type == SCORES.field(name).type
        assert len(column) == n_tokens


def test_minus_infinity_is_not_null() -> None:
    one = scores(1, 1, with_entropy=False)
    one.logprobs[0] = -np.inf
    assert score_columns(one, 2)["logprob"].to_pylist() == [None, -np.inf]
