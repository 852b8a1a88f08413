"""The one pass over logits as a Triton kernel, for CUDA devices."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokscore.scoring.engines.vllm.worker.row_scores import BLOCK_IDS, RowScores, select_top
from tokscore.scoring.given.logits import given_logits

# Blocks of ids that one step of the kernel takes, and the warps that share them.
_BLOCKS_PER_STEP = 32
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _score_rows(  # type: ignore[no-untyped-def]  # Triton's pointers and values have no Python types
    logits,
    stride,
    token_ids,
    log_totals,
    entropies,
    ranks,
    logprobs,
    maxima,
    maxima_stride,
    inverse_temperature,
    vocab_size,
    n_blocks,
    block_ids: tl.constexpr,
    blocks_per_step: tl.constexpr,
):
    """One program a row; logits are read once, in float32."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    realised = tl.load(base + tl.load(token_ids + row)).to(tl.float32)
    # Of what was read so far: maximum, sum of exp(x - peak), sum of exp(x - peak) * (x - peak).
    peak = -1e30
    total = 0.0
    weighted = 0.0
    rank = 0
    for first in range(0, n_blocks, blocks_per_step):
        block = first + tl.arange(0, blocks_per_step)
        ids = block[:, None] * block_ids + tl.arange(0, block_ids)[None, :]
        raw = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        block_peaks = tl.max(raw, axis=1)
        tl.store(maxima + row * maxima_stride + block, block_peaks, mask=block < n_blocks)
        at_least = (raw >= realised) & (ids < vocab_size)
        rank += tl.sum(tl.sum(at_least.to(tl.int32), axis=1), axis=0)
        values = raw * inverse_temperature
        new_peak = tl.maximum(peak, tl.max(block_peaks, axis=0) * inverse_temperature)
        scale = tl.exp(peak - new_peak)
        below = values - new_peak
        weights = tl.exp(below)
        weighted = scale * (weighted + (peak - new_peak) * total)
        weighted += tl.sum(tl.sum(weights * tl.where(values > -1e30, below, 0.0), axis=1), axis=0)
        total = total * scale + tl.sum(tl.sum(weights, axis=1), axis=0)
        peak = new_peak
    log_total = tl.log(total)
    tl.store(log_totals + row, log_total)
    tl.store(entropies + row, log_total - weighted / total)
    tl.store(ranks + row, rank)
    tl.store(logprobs + row, realised * inverse_temperature - peak - log_total)


def score_rows_on_gpu(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float,
    at_ids: torch.Tensor | None = None,
) -> RowScores:
    """`fused.score_rows` for logits on a CUDA device whose rows are contiguous."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    token_ids = token_ids.contiguous()
    n_rows, vocab_size = logits.shape
    n_blocks = triton.cdiv(vocab_size, BLOCK_IDS)
    numbers = torch.empty((3, n_rows), device=logits.device, dtype=torch.float32)
    log_totals, entropies, logprobs = numbers
    ranks = torch.empty(n_rows, device=logits.device, dtype=torch.int32)
    maxima = torch.empty((n_rows, n_blocks), device=logits.device, dtype=torch.float32)
    _score_rows[(n_rows,)](
        logits,
        logits.stride(0),
        token_ids,
        log_totals,
        entropies,
        ranks,
        logprobs,
        maxima,
        maxima.stride(0),
        1.0 / temperature,
        vocab_size,
        n_blocks,
        block_ids=BLOCK_IDS,
        blocks_per_step=_BLOCKS_PER_STEP,
        num_warps=_WARPS,
    )
    top_logits, top_ids = select_top(logits, maxima, top_k)
    # As in the kernel, so that equal logits have equal logprobs and none is above 0.
    scaled, peaks = top_logits * (1.0 / temperature), maxima.amax(1, keepdim=True) * (1.0 / temperature)
    top_logprobs = scaled - peaks - log_totals[:, None]
    if at_ids is None:
        return RowScores(logprobs, ranks, entropies, top_ids, top_logprobs)
    given = given_logits(logits, at_ids).float() * (1.0 / temperature)
    at_logprobs = given - peaks - log_totals[:, None]
    return RowScores(logprobs, ranks, entropies, top_ids, top_logprobs, at_logprobs)
