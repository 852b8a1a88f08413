from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tokscore.dataset.schema import SCORES
from tokscore.scoring import SequenceScores
from tokscore.scoring.columns import MAX_VALUES, ScoredTokens, score_columns


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
    columns = score_columns([ScoredTokens(3, scores(2, 2, with_entropy=True))])
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "logprob": [None, 0.0, -1.0],
        "rank": [None, 1, 2],
        "entropy": [None, 0.5, 0.5],
        "top_ids": [None, [0, 1], [2, 3]],
        "top_logprobs": [None, [0.0, -1.0], [-2.0, -3.0]],
        "at_ids": [None, None, None],
        "at_logprobs": [None, None, None],
    }


def test_without_top_k_the_lists_are_empty() -> None:
    columns = score_columns([ScoredTokens(3, scores(2, 0, with_entropy=False))])
    assert columns["top_ids"].to_pylist() == [None, [], []]
    assert columns["entropy"].to_pylist() == [None, None, None]


@pytest.mark.parametrize("most", [MAX_VALUES, 3])
def test_conversations_follow_each_other(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("tokscore.scoring.columns.MAX_VALUES", most)
    wanted = np.array([False, True, False, True])
    rows = [
        ScoredTokens(2, None),
        ScoredTokens(3, scores(2, 2, with_entropy=True)),
        ScoredTokens(0, None),
        ScoredTokens(5, scores(2, 1, with_entropy=False), wanted),
        ScoredTokens(1, None),
    ]
    columns = score_columns(rows)
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "logprob": [None, None, None, 0.0, -1.0, None, None, 0.0, None, -1.0, None],
        "rank": [None, None, None, 1, 2, None, None, 1, None, 2, None],
        "entropy": [None, None, None, 0.5, 0.5, *[None] * 6],
        "top_ids": [None, None, None, [0, 1], [2, 3], None, None, [0], None, [1], None],
        "top_logprobs": [None, None, None, [0.0, -1.0], [-2.0, -3.0], None, None, [0.0], None, [-1.0], None],
        "at_ids": [None] * 11,
        "at_logprobs": [None] * 11,
    }
    assert columns["top_ids"].num_chunks == (1 if most == MAX_VALUES else 3)


@pytest.mark.parametrize("n_tokens", [0, 1, 4])
def test_types_are_those_of_the_score_table(n_tokens: int) -> None:
    found = None if n_tokens == 0 else scores(n_tokens - 1, 3, with_entropy=True)
    for name, column in score_columns([ScoredTokens(n_tokens, found)]).items():
        assert column.type == SCORES.field(name).type
        assert len(column) == n_tokens


def test_minus_infinity_is_not_null() -> None:
    one = scores(1, 1, with_entropy=False)
    one.logprobs[0] = -np.inf
    assert score_columns([ScoredTokens(2, one)])["logprob"].to_pylist() == [None, -np.inf]


def test_given_ids_are_lists_of_their_own_length() -> None:
    at_ids = np.array([[5, -1], [-1, -1], [7, 3]], np.int32)
    given = replace(scores(3, 1, with_entropy=True), at_ids=at_ids, at_logprobs=-at_ids.astype(np.float32))
    wanted = np.array([True, False, True, True])
    columns = score_columns(
        [ScoredTokens(5, given, wanted), ScoredTokens(2, scores(1, 1, with_entropy=True))]
    )
    assert columns["at_ids"].to_pylist() == [None, [5], None, [], [7, 3], None, None]
    assert columns["at_logprobs"].to_pylist() == [None, [-5.0], None, [], [-7.0, -3.0], None, None]
