"""Whether transformers reads the quantized weights of a checkpoint as what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import InputError, foreign


def quantization_method(config: Any, name: str) -> str | None:  # Any: of transformers, which is not typed
    """The method by which a checkpoint is quantized; None where it is not.

    Args:
        config: The configuration of the model.
        name: Of the model, for messages.

    Raises:
        InputError: transformers knows no such method. It would take the packed numbers for the weights.
    """
    given = getattr(config, "quantization_config", None)
    if given is None:
        given = getattr(config.get_text_config(), "quantization_config", None)
    if given is None:
        return None
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = given.get("quant_method") if isinstance(given, Mapping) else getattr(given, "quant_method", None)
    found = str(getattr(method, "value", method))
    if found == "bitsandbytes":
        return found
    if found not in AUTO_QUANTIZER_MAPPING:
        raise InputError(
            f"{name}: quantization_config.quant_method is {foreign(found)[:60]!r}, which transformers cannot "
            f"load; it can {', '.join(sorted(AUTO_QUANTIZER_MAPPING))}.\n"
            "Score it with `engine='vllm'` where that reads it, or a copy whose weights are not quantized."
        )
    return found


def quantization_detail(model: Any, method: str) -> str:  # Any: of transformers
    """How a loaded model computes with its quantized weights.

    Args:
        model: It.
        method: By which its checkpoint is quantized.
    """
    is_whole = all(
        parameter.dtype.is_floating_point and parameter.dtype.itemsize > 1 for parameter in model.parameters()
    )
    return f"{method}, dequantized at load" if is_whole else method
