"""The check of a path at start, on rows of known logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tokscore.scoring import SequenceScores
from tokscore.scoring.engines.transformers import score_logits
from tokscore.scoring.engines.vllm.path_check import LIMIT, LIMIT_16_BIT, PLAIN_TOP_K, PathCheck, PathError
from tokscore.scoring.engines.vllm.worker import fused_check
from tokscore.scoring.engines.vllm.worker.fused import score_rows
from tokscore.scoring.engines.vllm.worker.fused_check import check_fused_pass
from tokscore.scoring.engines.vllm.worker.row_scores import RowScores

VOCAB_SIZE, N_ROWS = 500, 100


def logits_and_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn((N_ROWS, VOCAB_SIZE), generator=generator) * 3
    likely = logits.argsort(1, descending=True)[:, 2]
    return logits, torch.where(
        torch.arange(N_ROWS) % 2 == 0, likely, torch.randint(VOCAB_SIZE, (N_ROWS,), generator=generator)
    )


def fused(logits: torch.Tensor, tokens: torch.Tensor, top_k: int, temperature: float = 1.0) -> SequenceScores:
    found = score_rows(logits, tokens, top_k, temperature)._asdict()
    return SequenceScores(**{name: column.numpy() for name, column in found.items() if column is not None})


@pytest.mark.parametrize("top_k", [0, 5, VOCAB_SIZE])
@pytest.mark.parametrize("temperature", [0.005, 1.0, 3.0])
@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        (lambda logits: logits, LIMIT),
        (lambda logits: logits / 20, LIMIT),
        (lambda logits: logits.round(), LIMIT),
        (lambda logits: logits.masked_fill(logits < 1, float("-inf")), LIMIT),
        (lambda logits: logits.bfloat16().float(), LIMIT_16_BIT),
    ],
    ids=["plain", "flat", "ties", "ruled out", "bf16"],
)
def test_rounding_ties_and_temperatures_pass(
    shape: Callable[[torch.Tensor], torch.Tensor], limit: float, temperature: float, top_k: int
) -> None:
    logits, tokens = logits_and_tokens()
    plain = score_logits(shape(logits), tokens, max(top_k, PLAIN_TOP_K))
    found = fused(shape(logits) if limit == LIMIT else logits, tokens, top_k, temperature)
    difference = PathCheck(VOCAB_SIZE, temperature, limit).difference(found, plain)
    assert difference <= (1e-4 if limit == LIMIT else 0.1) / min(temperature, 1)


@pytest.mark.parametrize("top_k", [2, 5, 20])
def test_a_list_that_is_longer_than_the_ids_allowed_holds_ids_of_the_vocabulary(top_k: int) -> None:
    """The last block of ids is not whole."""
    vocab_size = 151_937
    logits = torch.full((3, vocab_size), float("-inf"))
    logits[:, -1] = 2
    logits[2, 7], logits[2, 9_000] = 3, torch.finfo(torch.float32).min
    tokens = torch.full((3,), vocab_size - 1)
    found = score_rows(logits, tokens, top_k, 1.0)
    assert (found.top_ids < vocab_size).all()
    assert all(len(row.unique()) == top_k for row in found.top_ids)
    assert found.top_ids[2, :3].tolist() == [7, vocab_size - 1, 9_000][:top_k]
    expected = score_logits(logits, tokens, top_k)
    np.testing.assert_allclose(found.top_logprobs.numpy(), expected.top_logprobs, atol=1e-5)


def spoilt(column: str, change: Callable[[np.ndarray], object]) -> Callable[[SequenceScores], SequenceScores]:
    def spoil(scores: SequenceScores) -> SequenceScores:
        values = getattr(scores, column).copy()
        change(values)
        return replace(scores, **{column: values})

    return spoil


def other_id(ids: np.ndarray) -> None:
    ids[7, 4] = next(i for i in range(VOCAB_SIZE) if i not in ids[7])


def swap(ids: np.ndarray) -> None:
    ids[7, :2] = ids[7, 1::-1]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoilt("logprobs", lambda v: v.__setitem__(3, v[3] - 0.01)), "logprobs differ"),
        (spoilt("top_logprobs", lambda v: v.__setitem__((3, 4), v[3, 4] - 0.01)), "logprobs differ"),
        (spoilt("top_ids", swap), "logprobs differ"),
        (spoilt("top_ids", other_id), "most likely ids are others"),
        (spoilt("ranks", lambda v: v.__setitem__(2, 5)), "ranks differ"),
        (spoilt("ranks", lambda v: v.__setitem__(2, 2)), "ranks differ"),
        (spoilt("ranks", lambda v: v.__setitem__(5, v[5] + 20)), "ranks differ"),
        (spoilt("entropy", lambda v: v.__setitem__(3, np.nan)), "entropy of nan"),
        (spoilt("entropy", lambda v: v.__setitem__(3, np.log(VOCAB_SIZE) + 0.1)), "entropy of 6.3"),
        (spoilt("entropy", lambda v: v.__setitem__(3, 0.2)), "entropy of 0.2"),
    ],
)
def test_any_column_that_is_wrong_is_found(
    spoil: Callable[[SequenceScores], SequenceScores], reason: str, temperature: float
) -> None:
    logits, tokens = logits_and_tokens()
    plain = score_logits(logits, tokens, PLAIN_TOP_K)
    found = fused(logits, tokens, 5, temperature)
    check = PathCheck(VOCAB_SIZE, temperature, LIMIT)
    check.difference(found, plain)
    with pytest.raises(PathError, match=reason):
        check.difference(spoil(found), plain)


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_temperature_that_is_ignored_or_divides_logprobs_is_found(top_k: int) -> None:
    logits, tokens = logits_and_tokens()
    plain = score_logits(logits, tokens, PLAIN_TOP_K)
    ignored = fused(logits, tokens, top_k)
    divided = replace(ignored, logprobs=ignored.logprobs / 0.7, top_logprobs=ignored.top_logprobs / 0.7)
    check = PathCheck(VOCAB_SIZE, 0.7, LIMIT)
    with pytest.raises(PathError, match=r"differ|at temperature 0\.7"):
        check.difference(ignored, plain)
    with pytest.raises(PathError, match=r"at temperature 0\.7"):
        check.difference(divided, plain)


def test_sequences_end_batches_inside_one_and_want_some_rows() -> None:
    sequences = PathCheck(VOCAB_SIZE, 1.0, LIMIT).sequences(longest=100, batch_tokens=150)
    assert [len(sequence.token_ids) for sequence in sequences] == [9, 9, 100, 100]
    assert [sequence.n_rows for sequence in sequences] == [5, 8, 99, 99]
    assert [s.n_rows for s in PathCheck(VOCAB_SIZE, 1.0, LIMIT).sequences(1, 3)] == [0, 0, *[0] * 6]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.01])
@pytest.mark.parametrize("top_k", [0, 20, 3_001])
def test_the_fused_pass_is_right_on_a_gpu(dtype: torch.dtype, temperature: float, top_k: int) -> None:
    check_fused_pass(torch.device("cuda"), dtype, 3_001, top_k, temperature)


@pytest.mark.parametrize("column", RowScores._fields)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_fused_pass_is_checked_column_by_column(
    column: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (torch.device("cpu"), torch.bfloat16, 3_001, 5, temperature)
    check_fused_pass(*arguments)

    def broken(*given: object) -> RowScores:
        rows = score_rows(*given)
        wrong = getattr(rows, column).clone()
        wrong[2] += 1
        return rows._replace(**{column: wrong})

    monkeypatch.setattr(fused_check, "score_rows", broken)
    with pytest.raises(RuntimeError, match=f"wrong {column} on cpu"):
        check_fused_pass(*arguments)
