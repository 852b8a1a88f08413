"""The Triton kernel, run by Triton's interpreter on the CPU, against float64."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

from tokscore.scoring.engines.transformers import score_logits
from tokscore.scoring.engines.vllm.worker.row_scores import RowScores

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET is not 1"),
]
VOCAB_SIZES = (1_000, 32_003, 151_936, 262_144)
TOP_KS = (0, 1, 20, 100)
ATOL = 2e-4
N_GIVEN = 7


def rows(vocab_size: int) -> torch.Tensor:
    """Plain, tied, ruled out but for a few, a huge logit at each end, and nothing but one value."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = 4 * torch.randn((7, vocab_size), generator=generator)
    logits[1] = logits[1].round()
    logits[2].masked_fill_(logits[2] < 2, float("-inf"))
    logits[3, 5:] = float("-inf")
    logits[3, -1] = 1.0
    logits[4, 0] = 3e4
    logits[5, -1] = 3e4
    logits[6] = -1.5
    return logits


def realised(logits: torch.Tensor) -> torch.Tensor:
    """Tokens that the rows allow: likely ones, tied ones, the last id."""
    places = torch.tensor([0, 9, 3, 2, 0, 1, 0])
    order = logits.sort(dim=1, descending=True, stable=True).indices
    ids = order.gather(1, places[:, None])[:, 0]
    ids[3] = logits.shape[1] - 1
    return ids


def kernel(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float = 1.0,
    at_ids: torch.Tensor | None = None,
) -> RowScores:
    from tokscore.scoring.engines.vllm.worker.fused_kernel import score_rows_on_gpu

    return score_rows_on_gpu(logits, token_ids, top_k, temperature, at_ids)


def assert_right(
    found: RowScores,
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float = 1.0,
    at_ids: torch.Tensor | None = None,
) -> None:
    given = None if at_ids is None else at_ids.int().numpy()
    expected = score_logits(logits, token_ids, top_k, temperature, given)
    # A huge logit is rounded before anything is subtracted; where it is certain, nothing is left of it.
    for name in ("logprobs", "top_logprobs", "entropy", *(() if at_ids is None else ("at_logprobs",))):
        column, reference = getattr(found, name), torch.from_numpy(getattr(expected, name))
        torch.testing.assert_close(column, reference, rtol=1e-6, atol=ATOL / min(temperature, 1), msg=name)
    torch.testing.assert_close(found.ranks, torch.from_numpy(expected.ranks), rtol=0, atol=0)
    top_ids = found.top_ids.long()
    assert ((top_ids >= 0) & (top_ids < logits.shape[1])).all()
    assert all(len(row.unique()) == top_k for row in top_ids)
    # Ties may come in another order.
    assert torch.equal(logits.gather(1, top_ids), logits.gather(1, torch.from_numpy(expected.top_ids).long()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_the_kernel_is_right_at_every_width(vocab_size: int, dtype: torch.dtype) -> None:
    logits = rows(vocab_size).to(dtype)
    token_ids = realised(logits)
    generator = torch.Generator().manual_seed(1)
    at_ids = torch.randint(-1, vocab_size + 3, (len(logits), N_GIVEN), generator=generator)
    for top_k in TOP_KS:
        found = kernel(logits, token_ids, top_k, 1.0, at_ids)
        assert_right(found, logits, token_ids, top_k, 1.0, at_ids)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 3.0])
def test_the_kernel_divides_by_the_temperature(temperature: float) -> None:
    logits = rows(32_003)
    token_ids = realised(logits)
    assert_right(kernel(logits, token_ids, 20, temperature), logits, token_ids, 20, temperature)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_with_a_stride(dtype: torch.dtype) -> None:
    """Rows of a wider matrix, every other row, and columns whose neighbours lie apart."""
    wide = torch.full((14, 33_000), float("nan"), dtype=dtype)
    wide[::2, 7 : 7 + 32_003] = rows(32_003).to(dtype)
    strided = wide[::2, 7 : 7 + 32_003]
    assert strided.stride() == (66_000, 1)
    turned = rows(32_003).to(dtype).t().contiguous().t()
    assert turned.stride(1) != 1
    for logits in (strided, turned):
        token_ids = realised(logits)
        assert_right(kernel(logits, token_ids, 20), logits, token_ids, 20)


def test_one_row_and_none() -> None:
    logits = rows(1_000)
    token_ids = realised(logits)
    assert_right(kernel(logits[:1], token_ids[:1], 5), logits[:1], token_ids[:1], 5)
    found = kernel(logits[:0], token_ids[:0], 5)
    assert [len(column) for column in found if column is not None] == [0] * 5
    assert found.top_ids.shape == (0, 5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, which stands for a GPU
def test_a_nan_or_an_infinite_logit_shows() -> None:
    for value in (float("nan"), float("inf")):
        logits = rows(1_000)[:2].clone()
        logits[0, 500] = value
        found = kernel(logits, torch.tensor([3, 3]), 5)
        assert found.logprobs.isnan().tolist() == [True, False]
