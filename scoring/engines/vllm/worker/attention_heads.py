"""Attention of vLLM's Transformers backend, refused where a model has other heads than vLLM's cache.

vLLM takes the number of heads of keys and values from the configuration, and reads what a layer gives it as
so many heads. A layer with more of them (JetMoE repeats them for every expert) has it write past its cache.
"""

from __future__ import annotations

from typing import Any

import torch

# As the backend registers its attention with transformers.
_NAME = "vllm"


def check_heads() -> None:
    """Have every layer compared with the cache before it is run, from now on in this process.

    What is compiled already goes past it.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attend = ALL_ATTENTION_FUNCTIONS[_NAME]
    if getattr(attend, "checks_heads", False):
        return

    def checked(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        *rest: Any,  # Any: what transformers hands on
        **named: Any,
    ) -> Any:
        layer = _layer_of(module, named)
        for heads, name in ((query, "num_heads"), (key, "num_kv_heads")):
            expected = getattr(layer, name, None)
            # [batch, heads, tokens, width]; where one head holds all, its width says how many.
            found = heads.shape[1] * heads.shape[-1]
            if expected is not None and found != expected * layer.head_size:
                raise ValueError(
                    f"{type(module).__name__} has {name} * head_size = {found}, and vLLM's cache "
                    f"{expected} * {layer.head_size}: its Transformers backend cannot run this architecture; "
                    "use `engine='transformers'`."
                )
        return attend(module, query, key, *rest, **named)

    checked.checks_heads = True  # type: ignore[attr-defined]
    ALL_ATTENTION_FUNCTIONS.register(_NAME, checked)


def _layer_of(module: torch.nn.Module, named: dict[str, Any]) -> Any:
    """VLLM's own layer for one of transformers; None where it is not found."""
    instances = named.get("attention_instances")
    if instances is not None:
        return instances[module.layer_idx]
    return getattr(module, "attn", None)
