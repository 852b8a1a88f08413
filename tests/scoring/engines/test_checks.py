from __future__ import annotations

import numpy as np
import pytest

from tokscore.dataset.errors import ConversationError, EngineError
from tokscore.scoring import SequenceScores, TokenSequence
from tokscore.scoring.engines.contract import windows
from tokscore.scoring.engines.row_checks import check_scores


def scores(n_rows: int, top_k: int = 2, logprob: float = -2.0) -> SequenceScores:
    """The token is the most likely id where `logprob` is 0, otherwise beyond the list."""
    return SequenceScores(
        logprobs=np.full(n_rows, logprob, np.float32),
        ranks=np.full(n_rows, 1 if logprob == 0 else top_k + 1, np.int32),
        top_ids=np.tile(np.arange(top_k, dtype=np.int32), (n_rows, 1)),
        top_logprobs=np.tile(
            np.float32([logprob, -np.inf] if logprob == 0 else [-1.5, -1.6])[:top_k], (n_rows, 1)
        ),
        entropy=None,
    )


@pytest.mark.parametrize("n_rows", [0, 3, 5])
def test_a_wrong_number_of_rows_names_the_conversation_and_both_counts(n_rows: int) -> None:
    with pytest.raises(
        EngineError, match=rf"conversation c1: .*\({n_rows},\) for 4 tokens to score; expected \(4,\)"
    ):
        check_scores(scores(n_rows), 4, 2, "c1")


def test_missing_alternatives_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match=r"top_ids of shape \(4, 1\)"):
        check_scores(scores(4, top_k=1), 4, 2, "c1")


@pytest.mark.parametrize(("logprob", "message"), [(np.nan, "4 NaN"), (0.5, "0.5")])
def test_impossible_logprobs_fail_the_conversation(logprob: float, message: str) -> None:
    with pytest.raises(ConversationError, match=f"conversation c1 has .*{message}"):
        check_scores(scores(4, logprob=logprob), 4, 2, "c1")


@pytest.mark.parametrize("logprob", [-np.inf, 0.0])
def test_certain_and_ruled_out_tokens_are_fine(logprob: float) -> None:
    check_scores(scores(4, logprob=logprob), 4, 2, "c1")


def test_windows_keep_the_order_and_the_budget() -> None:
    lengths = [3, 4, 9, 1, 1, 7]
    sequences = [TokenSequence(key, np.zeros(n, np.int32)) for key, n in enumerate(lengths)]
    found = [[sequence.key for sequence in window] for window in windows(iter(sequences), 8)]
    assert found == [[0, 1], [2], [3, 4], [5]]
