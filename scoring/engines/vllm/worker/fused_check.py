"""The check of the fused pass where it will run: known rows, against float64 on the CPU."""

from __future__ import annotations

import torch

from tokscore.scoring.engines.transformers import score_logits
from tokscore.scoring.engines.vllm.worker.fused import score_rows

# Rounding in float32 at temperature 1, in nats; divided logits are rounded as much more as they are larger.
TOLERANCE = 2e-4
# Given ids of a row.
N_GIVEN = 5


def check_fused_pass(
    device: torch.device, dtype: torch.dtype, vocab_size: int, top_k: int, temperature: float
) -> None:
    """Compare every column that `score_rows` makes with the plain float64 one, on four kinds of rows.

    Args:
        device: Where the rows are scored.
        dtype: Of the logits.
        vocab_size: Their number in a row.
        top_k: As of `score_rows`.
        temperature: Likewise.

    Raises:
        RuntimeError: A column is not what it should be.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn((4, vocab_size), generator=generator)
    logits[1] = logits[1].round()  # ties, with the token and at the list's end
    logits[2].masked_fill_(logits[2] < 0, float("-inf"))
    logits[3, vocab_size // 2] += 20
    logits = logits.to(dtype)
    token_ids = torch.stack([*(row.argsort()[3 * vocab_size // 4] for row in logits[:3]), logits[3].argmax()])
    at_ids = torch.randint(-1, vocab_size, (4, N_GIVEN), generator=generator)
    at_ids[:, 0] = token_ids
    found = score_rows(logits.to(device), token_ids.to(device), top_k, temperature, at_ids.to(device))
    expected = score_logits(logits, token_ids, top_k, temperature, at_ids.int().numpy())
    tolerance = TOLERANCE * max(1.0, 1 / temperature)
    for name in ("logprobs", "top_logprobs", "entropy", "at_logprobs"):
        column, reference = getattr(found, name).cpu(), torch.from_numpy(getattr(expected, name))
        if not torch.allclose(column, reference, rtol=0, atol=tolerance):
            raise RuntimeError(f"the fused pass makes wrong {name} on {device.type}")
    if not torch.equal(found.ranks.cpu(), torch.from_numpy(expected.ranks)):
        raise RuntimeError(f"the fused pass makes wrong ranks on {device.type}")
    top_ids, reference_ids = found.top_ids.cpu().long(), torch.from_numpy(expected.top_ids).long()
    # Ties may come in another order.
    is_right = torch.equal(logits.gather(1, top_ids), logits.gather(1, reference_ids))
    if not is_right or any(len(row.unique()) < top_k for row in top_ids):
        raise RuntimeError(f"the fused pass makes wrong top_ids on {device.type}")
