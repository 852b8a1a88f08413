"""Scores of rows of logits, and the selection of the most likely ids, for every way to compute them."""

from __future__ import annotations

from typing import NamedTuple

import torch

# The most likely ids are looked for in the blocks of this many ids that hold the largest maxima.
BLOCK_IDS = 128


# Above this many alternatives a plain selection over the vocabulary is as fast.
MAX_BLOCK_TOP_K = 128


class RowScores(NamedTuple):
    """Scores of rows of logits, on their device.

    Attributes:
        logprobs: float32 [rows], of the realised tokens, in nats.
        ranks: int32 [rows], number of ids with a logit at least as high as the token's.
        entropy: float32 [rows], in nats.
        top_ids: int32 [rows, k], in descending order of their logits.
        top_logprobs: float32 [rows, k].
        at_logprobs: float32 [rows, width], of given ids, -inf for those that are none of the vocabulary; None
            where none were given.
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    entropy: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    at_logprobs: torch.Tensor | None = None


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
    if vocab_size % BLOCK_IDS == 0:
        top_logits, at = logits.gather(1, ids).topk(top_k, dim=1)
        return top_logits.float(), ids.gather(1, at).int()
    # An id that is ruled out comes before one that is not there, and behind all others.
    lowest, epsilon = torch.finfo(logits.dtype).min, torch.finfo(logits.dtype).eps
    found = logits.gather(1, ids.clamp(max=vocab_size - 1))
    candidates = found.clamp(min=lowest * (1 - epsilon)).masked_fill_(found == float("-inf"), lowest)
    at = candidates.masked_fill_(ids >= vocab_size, float("-inf")).topk(top_k, dim=1).indices
    ids = ids.gather(1, at)
    top_logits, order = logits.gather(1, ids).sort(dim=1, descending=True)
    return top_logits.float(), ids.gather(1, order).int()
