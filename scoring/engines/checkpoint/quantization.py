"""Whether transformers reads the quantized weights of a checkpoint as what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
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
    given = quantization_of(config)
    if given is None:
        return None
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = given.get("quant_method")
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


def quantization_of(config: Any) -> Mapping[str, Any] | None:  # Any: of transformers; JSON values
    """What a configuration says of packed weights; None where they are not packed."""
    for each in (config, config.get_text_config()):
        given = getattr(each, "quantization_config", None)
        if given is not None:
            return given if isinstance(given, Mapping) else dict(given.to_dict())
    return None


def without_quantization(config: Any) -> Any:  # Any: of transformers
    """The configuration of the same model with weights that are not packed."""
    found = deepcopy(config)
    for each in (found, found.get_text_config()):
        if hasattr(each, "quantization_config"):
            del each.quantization_config
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
