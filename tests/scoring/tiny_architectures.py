"""Every causal architecture of the installed transformers, made tiny with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 128
MAX_PARAMETERS = 30_000_000
# Sizes by the names that configurations have for them, where a configuration has that name.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "embedding_size", "dim"), 128),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "d_inner"), 96),
    "ffn_hidden_size": 512,  # vLLM's Falcon takes it to be four times the width
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 96),
    **dict.fromkeys(("shared_expert_intermediate_size", "intermediate_size_mlp"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads", "multi_query_group_num"), 2),
    # vLLM's attention on a CPU takes no smaller heads.
    **dict.fromkeys(("head_dim", "kv_channels"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "qk_head_dim"), 16),
    "qk_rope_head_dim": 8,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 16),
    "rotary_dim": 16,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"), 256),
    **dict.fromkeys(("initializer_range", "init_std"), 0.1),
    "layer_types": None,
}
# Refused by architecture wherever they are, so that there is nothing to compare.
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "image_token_id", "audio_token_id")


def names() -> Iterator[str]:
    """Types of models that `AutoModelForCausalLM` takes."""
    from transformers.models.auto import modeling_auto

    yield from sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def make(model_type: str, path: Path) -> None:
    """Save a tiny model of a type.

    Raises:
        Exception: It cannot be made, of whatever kind transformers raises.
        ValueError: It cannot be made tiny by its configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config_class = type(AutoConfig.for_model(model_type))
    config = config_class(**_sizes_of(config_class()))
    with torch.device("meta"):
        n_parameters = sum(
            parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters()
        )
    if n_parameters > MAX_PARAMETERS:
        raise ValueError(f"still {n_parameters:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(path)


def _sizes_of(config: Any) -> dict[str, Any]:  # Any: of transformers
    """What to ask for instead of a configuration's own values, in parts of it as well."""
    sizes: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            sizes[name] = _sizes_of(part)
        elif name in _SIZES and value is not None and (_SIZES[name] is None or not isinstance(value, list)):
            sizes[name] = _SIZES[name]
        elif name in _TOKENS and isinstance(value, int) and value >= VOCAB_SIZE:
            sizes[name] = VOCAB_SIZE - 1
    return sizes
