"""Scores from a block of logits in one pass: logprob, rank, entropy and the most likely ids."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tokscore.scoring.engines.vllm.worker.row_scores import BLOCK_IDS, RowScores, select_top
from tokscore.scoring.given.logits import given_logits

# On a CPU, a block of float32 logits that stays in the cache.
CACHE_BYTES = 4 * 2**20


def score_rows(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float,
    at_ids: torch.Tensor | None = None,
) -> RowScores:
    """Scores of tokens under the softmax of `logits / temperature`, summed in float32.

    Args:
        logits: [rows, vocab], any float type; -inf rules an id out. Not changed.
        token_ids: The realised tokens, int64 [rows].
        top_k: Alternatives to return, 0 to vocab.
        temperature: Above 0.
        at_ids: Further ids whose logprobs are wanted, int64 [rows, width], -1 to pad.

    Returns:
        One row per row of `logits`; NaN where a row holds NaN or +inf.
    """
    if logits.is_cuda and find_spec("triton") is not None:
        from tokscore.scoring.engines.vllm.worker.fused_kernel import score_rows_on_gpu

        return score_rows_on_gpu(logits, token_ids, top_k, temperature, at_ids)
    rows = max(1, CACHE_BYTES // (4 * logits.shape[1])) if logits.device.type == "cpu" else len(logits)
    blocks = [
        _score_block(
            logits[start : start + rows].float(),
            token_ids[start : start + rows, None],
            top_k,
            temperature,
            None if at_ids is None else at_ids[start : start + rows],
        )
        for start in range(0, max(len(logits), 1), max(rows, 1))
    ]
    if len(blocks) == 1:
        return blocks[0]
    columns = [column for column in zip(*blocks, strict=True) if column[0] is not None]
    return RowScores(*map(torch.cat, columns))


def _score_block(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float,
    at_ids: torch.Tensor | None,
) -> RowScores:
    given = None if at_ids is None else given_logits(logits, at_ids)
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
        at_logprobs=None if given is None else (given - peak) / temperature - log_total,
    )


def block_maxima(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each run of `BLOCK_IDS` ids; [rows, blocks], the last run may be shorter."""
    n_whole = logits.shape[1] // BLOCK_IDS * BLOCK_IDS
    whole = logits[:, :n_whole].reshape(len(logits), -1, BLOCK_IDS).amax(2) if n_whole else logits[:, :0]
    if n_whole == logits.shape[1]:
        return whole
    return torch.cat([whole, logits[:, n_whole:].amax(1, keepdim=True)], dim=1)
