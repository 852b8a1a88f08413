"""Logits of given ids."""

from __future__ import annotations

import torch


def given_logits(logits: torch.Tensor, at_ids: torch.Tensor) -> torch.Tensor:
    """Logits of the given ids: -inf where the model lacks the id, and for padding.

    Args:
        logits: [rows, vocab].
        at_ids: int64 [rows, width].
    """
    is_absent = (at_ids < 0) | (at_ids >= logits.shape[1])
    return logits.gather(1, at_ids.masked_fill(is_absent, 0)).masked_fill(is_absent, float("-inf"))
