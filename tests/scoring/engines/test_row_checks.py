"""Rows that no distribution has, beside rows of real distributions with ties and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tokscore.dataset.errors import ConversationError
from tokscore.scoring import SequenceScores
from tokscore.scoring.engines.row_checks import check_scores, find_fault
from tokscore.scoring.engines.vllm.worker.fused import score_rows

TOP_K = 5
TOKENS = np.array([3, 0, 9], np.int32)
# A row each: the token at rank 2, the token at rank 1, the token beyond the list.
GOOD = SequenceScores(
    logprobs=np.log(np.float32([0.3, 0.9, 0.01])),
    ranks=np.int32([2, 1, 8]),
    top_ids=np.int32([[1, 3, 0, 2, 4], [0, 1, 2, 3, 4], [1, 0, 2, 3, 4]]),
    top_logprobs=np.log(
        np.float32([[0.4, 0.3, 0.1, 0.1, 0.05], [0.9, 0.04, 0.03, 0.01, 0.01], [0.3, 0.3, 0.2, 0.1, 0.02]])
    ),
    entropy=None,
)


def changed(column: str, at: object, value: object) -> SequenceScores:
    values = getattr(GOOD, column).copy()
    values[at] = value
    return replace(GOOD, **{column: values})


def test_rows_of_a_distribution_pass() -> None:
    assert find_fault(GOOD, TOKENS) is None


@pytest.mark.parametrize(
    ("scores", "row", "reason"),
    [
        (changed("top_logprobs", (2, 3), -1.0), 2, "not in descending order"),
        (changed("top_logprobs", 1, np.log(np.float32([0.9, 0.1, 0.03, 0.01, 0.01]))), 1, "more than all"),
        (changed("top_ids", (0, 3), 0), 0, "holds an id twice"),
        (changed("top_ids", (0, 4), 1), 0, "holds an id twice"),
        (changed("ranks", 0, 0), 0, "rank is below 1"),
        (changed("ranks", 1, 2), 1, "so many ids as its rank says"),
        (changed("ranks", 2, 3), 2, "another logprob at its rank"),
        (changed("logprobs", 0, np.log(0.29)), 0, "another logprob at its rank"),
        (changed("logprobs", 2, np.log(0.021)), 2, "beyond its list, but it is likelier"),
        (changed("top_ids", (0, 1), 7), 0, "lacks the token, against its rank"),
        (changed("top_ids", (2, 4), 9), 2, "has the token at another logprob"),
    ],
)
def test_a_row_that_cannot_be_fails_its_conversation(scores: SequenceScores, row: int, reason: str) -> None:
    with pytest.raises(ConversationError, match=f"conversation c1, row {row} of 3: .*{reason}"):
        check_scores(scores, 3, TOP_K, "c1", TOKENS)


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("bfloat16", "try `dtype='float32'` or another `engine`."),
        ("float32", "try another `engine`."),
        (None, "try another `engine`."),
    ],
)
def test_a_dtype_that_helps_is_another(dtype: str | None, hint: str) -> None:
    with pytest.raises(ConversationError) as caught:
        check_scores(changed("logprobs", 0, np.nan), 3, TOP_K, "c1", TOKENS, dtype=dtype)
    assert caught.value.hint.endswith(hint)


def test_the_row_is_named_in_any_block() -> None:
    many = SequenceScores(
        *(np.concatenate([getattr(GOOD, name)] * 500) for name in ("logprobs", "ranks", "top_ids")),
        np.concatenate([GOOD.top_logprobs] * 500),
        None,
    )
    many.ranks[1_301] = 0
    found = find_fault(many)
    assert found is not None
    assert found.row == 1_301


@pytest.mark.parametrize("top_k", [0, 1, 7, 40])
@pytest.mark.parametrize(
    "shape",
    [
        lambda logits: logits,
        lambda logits: logits.bfloat16(),
        lambda logits: (logits * 2).round() / 2,  # ties in every row, and with the token
        lambda logits: torch.zeros_like(logits),
        lambda logits: logits.masked_fill(logits < 0, float("-inf")),
        lambda logits: logits * 300,
    ],
    ids=["plain", "bf16", "ties", "uniform", "ruled out", "large"],
)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_real_rows_are_never_at_fault(
    shape: Callable[[torch.Tensor], torch.Tensor], top_k: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = shape(torch.randn((300, 40), generator=generator) * 3)
    tokens = torch.randint(40, (300,), generator=generator)
    rows = score_rows(logits, tokens, top_k, temperature)
    columns = {name: column.numpy() for name, column in rows._asdict().items() if column is not None}
    check_scores(SequenceScores(**columns), 300, top_k, "real", tokens.int().numpy())
