"""A model loaded with transformers: all of its weights, none made up, attention that leaves nothing out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tokscore.dataset.errors import EngineError, InputError, is_about_code, needs_code
from tokscore.scoring.engines.checkpoint.adapter import merge_adapter
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.checkpoint.messages import quiet
from tokscore.scoring.engines.checkpoint.quantization import quantization_detail, quantization_method
from tokscore.scoring.engines.checkpoint.skeleton import check_files, check_skeleton
from tokscore.scoring.engines.checkpoint.weights import LoadReport
from tokscore.scoring.engines.contract import last_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from tokscore.scoring.engines.model import ModelFiles

# A transformers model or module: the library is not typed.
Model = Any

# What a configuration can ask of attention that transformers' faster kinds leave out in some releases.
_ONLY_EAGER = ("attn_logit_softcapping",)
PROBE_TOKENS = 16
# Two kinds of attention that compute the same differ by rounding: in nats, the largest and on average.
MAX_ROUNDING, MEAN_ROUNDING = 1e-3, 1e-4
MAX_ROUNDING_16_BIT, MEAN_ROUNDING_16_BIT = 1.0, 0.1


class Loaded(NamedTuple):
    """A model in memory.

    Attributes:
        model: It, in evaluation mode.
        left_out: Weights in its files that scoring text does not need, by place; None where there are none.
        attention: The kind in use where it is not transformers' choice; None otherwise.
        quantization: The method of a quantized checkpoint, and how it computes; None for others.
    """

    model: Model
    left_out: str | None
    attention: str | None
    quantization: str | None


def load_model(files: ModelFiles, dtype: str, device: torch.device) -> Loaded:
    """The model of a folder.

    Raises:
        EngineError: Memory is short, or a package is missing.
        InputError: Weights and configuration do not go together, or transformers cannot load them.
    """
    from transformers import AutoModelForCausalLM

    whole = load_config(files.path, files.name, trust_remote_code=files.trust_remote_code)
    method = quantization_method(whole, files.name)
    if method is None:
        check_skeleton(whole, files.tensors(), files.name, trust_remote_code=files.trust_remote_code)
    else:
        plain = check_files(
            whole, files.weight_files(), files.name, trust_remote_code=files.trust_remote_code
        )
        if plain is not None:
            plain.left_out(files.name)
    eager = _needs_eager(whole.get_text_config())
    # Packages that read packed weights print what they do, and stdout is for results.
    with quiet() as messages, redirect_stdout(sys.stderr):
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                files.path,
                dtype=getattr(torch, dtype),
                trust_remote_code=files.trust_remote_code,
                output_loading_info=True,
                # Otherwise it raises, and cites a report that it has logged.
                ignore_mismatched_sizes=True,
                **({"attn_implementation": "eager"} if eager else {}),
            )
            if method == "bitsandbytes" and device.type == "cpu":
                # Its kernels for CPUs compute in bfloat16, or with outliers of all tokens together.
                model = model.dequantize(getattr(torch, dtype))
        except Exception as error:  # It raises its own, safetensors', torch's and built-in errors.
            raise _load_error(error, files, messages) from error
    left_out = LoadReport.of(report).without_zeros(files.weight_files()).left_out(files.name)
    if files.adapter is not None:
        model = merge_adapter(model, files.adapter, files.name)
    model = model.to(device).eval()
    if not eager:
        with first_run(files.name):
            eager = _mend_attention(model, files.vocab_size, min(files.max_length, PROBE_TOKENS))
    quantization = None if method is None else quantization_detail(model, method)
    return Loaded(model, left_out, "eager" if eager else None, quantization)


def _needs_eager(config: PretrainedConfig) -> bool:
    return any(getattr(config, name, None) is not None for name in _ONLY_EAGER)


@torch.inference_mode()
def _mend_attention(model: Model, vocab_size: int, n_tokens: int) -> bool:
    """Take plain attention where the model's kind gives other logprobs; whether that was so."""
    chosen = getattr(model.config, "_attn_implementation", "eager")
    if chosen == "eager" or not hasattr(model, "set_attn_implementation"):
        return False
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (1, n_tokens), generator=generator).to(model.device)

    def logprobs() -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        return logits[0].double().log_softmax(-1)

    before = logprobs()
    with quiet():
        try:
            model.set_attn_implementation("eager")
        except Exception:  # noqa: BLE001 (a model without it; transformers raises its own and built-in errors)
            return False
    move = (logprobs() - before).abs().nan_to_num(0, 0, 0)
    in_float32 = next(model.parameters()).dtype == torch.float32
    max_move = MAX_ROUNDING if in_float32 else MAX_ROUNDING_16_BIT
    mean_move = MEAN_ROUNDING if in_float32 else MEAN_ROUNDING_16_BIT
    if move.max() > max_move or move.mean() > mean_move:
        return True
    with quiet():
        model.set_attn_implementation(chosen)
    return False


def _load_error(error: Exception, files: ModelFiles, messages: list[str]) -> Exception:
    """The error of loading as one of ours, with the report that it cites."""
    if not files.trust_remote_code and is_about_code(error):
        return InputError(needs_code(files.name))
    reason = f"transformers cannot load {files.name}: {last_line(error)}"
    if "report" in str(error) and messages:
        reason += "\n" + "\n".join(messages)
    if isinstance(error, MemoryError | ImportError | torch.OutOfMemoryError):
        return EngineError(reason)
    return InputError(reason)


@contextmanager
def engine_errors() -> Iterator[None]:
    """Failures of torch as engine errors."""
    try:
        yield
    except RuntimeError as error:  # Out of memory, too.
        raise EngineError(f"the transformers engine failed: {last_line(error)}") from error


@contextmanager
def first_run(name: str) -> Iterator[None]:
    """Failures of a model that was just loaded: its configuration is to blame, unless memory is short."""
    try:
        yield
    except (EngineError, InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if "alloc" in str(error).lower():
            raise EngineError(f"the transformers engine failed: {last_line(error)}") from error
        raise InputError(f"{name} cannot be run: {last_line(error)}") from error
