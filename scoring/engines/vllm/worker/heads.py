"""The head of a model in float32, where the model computes in less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch

# Objects of vLLM, which has no types for us.
Vllm = Any


def float32_heads(model: Vllm) -> list[Vllm]:
    """The modules that turn hidden states into logits."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    heads = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    if not heads or any(head.logits_as_input for head in heads):
        raise ValueError("this model makes its logits in a way that cannot be run in float32")
    return heads


def _logits_in_float32(
    self: Vllm,
    hidden_states: torch.Tensor,
    lm_head: Vllm,
    embedding_bias: torch.Tensor | None,
    skip_gather: bool = False,
) -> torch.Tensor | None:
    """`LogitsProcessor._get_logits` with float32 sums and results."""
    weight = lm_head.weight
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"a head of {weight.dtype} cannot be run in float32")
    logits: torch.Tensor | None
    if weight.is_cuda:
        logits = torch.mm(hidden_states.to(weight.dtype), weight.t(), out_dtype=torch.float32)
    else:
        logits = torch.nn.functional.linear(hidden_states.float(), weight.float())
    if embedding_bias is not None:
        logits += embedding_bias
    if skip_gather:
        return logits
    if lm_head.tp_size > 1:
        logits = self._gather_logits(logits)
    return None if logits is None else logits[..., : self.org_vocab_size]


@contextmanager
def float32_logits(heads: Sequence[Vllm]) -> Iterator[None]:
    """Only while prompts are scored: what vLLM samples stays as it was."""
    for processor in heads:
        processor._get_logits = MethodType(_logits_in_float32, processor)
    try:
        yield
    finally:
        for processor in heads:
            del processor._get_logits
