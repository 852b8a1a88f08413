"""Keys and values of transformers' models, kept for sequences that begin alike."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

# A model of transformers, whose classes have no types for us.
Model = Any


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keeps all that came, also where attention reaches back only so far: a branch may leave anywhere.

    Attributes:
        grows: Whether what comes is kept for branches.
    """

    keys: torch.Tensor
    values: torch.Tensor
    is_initialized: bool

    def __init__(self, *, grows: bool) -> None:
        super().__init__()
        self.grows = grows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_named: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values from the first token on, [batch, heads, tokens, width]."""
        if self.is_initialized:
            key_states = torch.cat([self.keys, key_states], dim=-2)
            value_states = torch.cat([self.values, value_states], dim=-2)
        if self.grows:
            self.keys, self.values = key_states, value_states
            self.is_initialized = True
        return key_states, value_states


def cache_argument(model: Model) -> str | None:
    """The argument that a model takes its cache by, which transformers renamed; None where it takes none."""
    names = signature(type(model).forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def reason_against(config: PretrainedConfig) -> str | None:
    """Why what a model computed for a beginning cannot be kept; None where it can."""
    text = config.get_text_config()
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = [value for value in ropes.values() if isinstance(value, dict)] or [ropes]
    if any(kind.get("rope_type") == "dynamic" for kind in kinds):
        return "its positions change with the length of a sequence"
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        return "its attention is chunked"
    layers = DynamicCache(config=text).layers
    if not layers:
        return "its cache is of another kind"
    others = {type(each).__name__ for each in layers} - {
        DynamicLayer.__name__,
        DynamicSlidingWindowLayer.__name__,
    }
    if others:
        return "layers that are recurrent or keep more than keys and values: " + ", ".join(sorted(others))
    return None


def new_cache(config: PretrainedConfig) -> Cache:
    """An empty cache that grows."""
    n_layers = len(DynamicCache(config=config.get_text_config()).layers)
    return Cache(layers=[_Layer(grows=True) for _ in range(n_layers)])


def branched(cache: Cache, row: int, n_tokens: int, n_branches: int, *, grows: bool) -> Cache:
    """The first tokens of one row of a cache, for several branches; nothing is copied.

    Args:
        cache: Of a trunk.
        row: The trunk's in its batch.
        n_tokens: Tokens that the branches share.
        n_branches: They.
        grows: Whether what they add is kept.
    """
    layers = []
    for kept in cache.layers:
        layer = _Layer(grows=grows)
        layer.device, layer.dtype = kept.keys.device, kept.keys.dtype
        for name in ("keys", "values"):
            part = getattr(kept, name)[row : row + 1, :, :n_tokens]
            setattr(layer, name, part.expand(n_branches, -1, -1, -1))
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)
