"""Scores from a block of logits in one pass: logprob, rank, entropy and the most likely ids."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch

# The most likely ids are looked for in the blocks of this many ids that hold the largest maxima.
BLOCK_IDS = 128
# Above this many alternatives a plain selection over the vocabulary is as fast.
MAX_BLOCK_TOP_K = 128
# On a CPU, a block of float32 logits that stays in the cache.
CACHE_BYTES = 4 * 2**20


class RowScores(NamedTuple):
    """Scores of rows of logits, on their device.

    Attributes:
        logprobs: float32 [rows], of the realised tokens, in nats.
        ranks: int32 [rows], number of ids with a logit at least as high as the token's.
        entropy: float32 [rows], in nats.
        top_ids: int32 [rows, k], in descending order of their logits.
        top_logprobs: float32 [rows, k].
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    entropy: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def score_rows(logits: torch.Tensor, token_ids: torch.Tensor, top_k: int, temperature: float) -> RowScores:
    """Scores of tokens under the softmax of `logits / temperature`, summed in float32.

    Args:
        logits: [rows, vocab], any float type; -inf rules an id out. Not changed.
        token_ids: The realised tokens, int64 [rows].
        top_k: Alternatives to return, 0 to vocab.
        temperature: Above 0.

    Returns:
        One row per row of `logits`; NaN where a row holds NaN or +inf.
    """
    if logits.is_cuda and find_spec("triton") is not None:
        from tokscore.scoring.engines.fused_kernel import score_rows_on_gpu

        return score_rows_on_gpu(logits, token_ids, top_k, temperature)
    rows = max(1, CACHE_BYTES // (4 * logits.shape[1])) if logits.device.type == "cpu" else len(logits)
    blocks = [
        _score_block(block.float(), ids[:, None], top_k, temperature)
        for block, ids in zip(torch.split(logits, rows), torch.split(token_ids, rows), strict=True)
    ]
    if len(blocks) == 1:
        return blocks[0]
    return RowScores(*(torch.cat(column) for column in zip(*blocks, strict=True)))


def _score_block(logits: torch.Tensor, token_ids: torch.Tensor, top_k: int, temperature: float) -> RowScores:
    realised = logits.gather(1, token_ids)
    ranks = (logits >= realised).sum(1, dtype=torch.int32)
    maxima = block_maxima(logits)
    top_logits, top_ids = select_top(logits, maxima, top_k)
    peak = maxima.amax(1, keepdim=True)
    below_peak = (logits - peak).div_(temperature)
    weights = below_peak.exp()
    total = weights.sum(1, keepdim=True)
    log_total = total.log()
    # An id without mass adds nothing to the entropy, where 0 * -inf would be NaN.
    below_peak.clamp_(min=torch.finfo(torch.float32).min)
    entropy = log_total[:, 0] - torch.linalg.vecdot(weights, below_peak) / total[:, 0]
    return RowScores(
        logprobs=((realised - peak) / temperature - log_total)[:, 0],
        ranks=ranks,
        entropy=entropy,
        top_ids=top_ids,
        top_logprobs=(top_logits - peak) / temperature - log_total,
    )


def block_maxima(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each run of `BLOCK_IDS` ids; [rows, blocks], the last run may be shorter."""
    n_whole = logits.shape[1] // BLOCK_IDS * BLOCK_IDS
    whole = logits[:, :n_whole].reshape(len(logits), -1, BLOCK_IDS).amax(2) if n_whole else logits[:, :0]
    if n_whole == logits.shape[1]:
        return whole
    return torch.cat([whole, logits[:, n_whole:].amax(1, keepdim=True)], dim=1)


def select_top(logits: torch.Tensor, maxima: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` largest logits of each row as float32, and their ids as int32, both in descending order.

    They all lie in the `top_k` blocks with the largest maxima: a block outside these holds no logit above
    any of their maxima.
    """
    n_blocks = maxima.shape[1]
    if top_k > MAX_BLOCK_TOP_K or 2 * top_k >= n_blocks:
        top_logits, top_ids = logits.topk(top_k, dim=1)
        return top_logits.float(), top_ids.int()
    blocks = maxima.topk(top_k, dim=1, sorted=False).indices
    ids = (blocks[:, :, None] * BLOCK_IDS + torch.arange(BLOCK_IDS, device=logits.device)).flatten(1)
    vocab_size = logits.shape[1]
    if vocab_size % BLOCK_IDS:
        candidates = logits.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill(
            ids >= vocab_size, float("-inf")
        )
    else:
        candidates = logits.gather(1, ids)
    top_logits, at = candidates.topk(top_k, dim=1)
    return top_logits.float(), ids.gather(1, at).int()
