"""What the packed weights of a quantized checkpoint stand for, by name and shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokscore.scoring.engines.checkpoint.weights import Tensor

# Beside a packed weight: how its numbers, what goes into it and the cache are scaled.
_BESIDE = re.compile(
    r"\.(qzeros|scales|g_idx|SCB|weight_format|[qkv]_scale|kv_scale"
    r"|weight_(scale|scale_inv|zero_point|shape|g_idx|global_scale)"
    r"|(input|activation|output)_(scale|scale_inv|zero_point|global_scale))$"
)
# Layouts whose shapes are known here: of GPTQ, AWQ and compressed-tensors.
_LAYOUTS = {
    "gptq": ("checkpoint_format", (None, "gptq", "gptq_v2")),
    "awq": ("version", (None, "gemm", "GEMM")),
    "compressed-tensors": (
        "format",
        ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"),
    ),
    "fp8": ("fmt", (None, "e4m3", "float8_e4m3fn")),
}
_OF_ONE_BYTE = ("int8", "float8_e4m3fn")
_SCALES = ("weight_scale", "weight_scale_inv", "SCB")


class PlainWeights(NamedTuple):
    """A checkpoint as if it was not quantized.

    Attributes:
        tensors: Names and shapes of all its weights.
        missing: Names without which packed weights cannot be read.
    """

    tensors: dict[str, Tensor]
    missing: list[str]


def plain_weights(stored: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> PlainWeights | None:
    """What packed weights stand for; None where their layout is not known here.

    Args:
        stored: Names, types and shapes in the files.
        quantization: `quantization_config` of config.json.

    Source:
        AutoGPTQ, AutoAWQ and compressed-tensors, as vLLM and transformers read them.
    """
    method = quantization.get("quant_method")
    key, known = _LAYOUTS.get(str(method), ("", ()))
    if quantization.get(key) not in known:
        return None
    tensors: dict[str, Tensor] = {}
    missing: list[str] = []
    for name, tensor in stored.items():
        if _BESIDE.search(name):
            continue
        module, _, ending = name.rpartition(".")
        needed: tuple[tuple[str, ...], ...] = ()
        if ending == "qweight":
            found, needed = _of_qweight(stored, module, tensor, quantization), (("scales",), ("qzeros",))
        elif ending == "weight_packed":
            found, needed = _of_packed(tensor, quantization), (("weight_scale",),)
        else:
            tensors[name] = tensor
            if ending == "weight" and tensor.dtype in _OF_ONE_BYTE:
                tensors[name], needed = Tensor("float32", tensor.shape), (_SCALES,)
            found = tensors[name]
        if found is None:
            return None
        tensors[f"{module}.weight" if needed else name] = found
        missing += [
            f"{module}.{each[0]}" for each in needed if not any(f"{module}.{n}" in stored for n in each)
        ]
    return PlainWeights(tensors, missing)


def _of_qweight(
    stored: Mapping[str, Tensor], module: str, tensor: Tensor, quantization: Mapping[str, Any]
) -> Tensor | None:
    """GPTQ packs along the inputs, which come first, AWQ along the outputs."""
    bits = quantization.get("bits", quantization.get("w_bit"))
    if bits not in (2, 4, 8) or len(tensor.shape) != 2:
        return None
    first, second = tensor.shape
    if quantization["quant_method"] == "awq":
        return Tensor("float32", (second * 32 // bits, first))
    groups = stored.get(f"{module}.g_idx")
    return Tensor("float32", (second, first * 32 // bits if groups is None else groups.shape[0]))


def _of_packed(tensor: Tensor, quantization: Mapping[str, Any]) -> Tensor | None:
    """compressed-tensors packs along the inputs, which come last."""
    groups = quantization.get("config_groups")
    weights = [
        group.get("weights") if isinstance(group, dict) else None
        for group in (groups.values() if isinstance(groups, dict) else ())
    ]
    bits = [each.get("num_bits") if isinstance(each, dict) else None for each in weights]
    if not bits or bits[0] not in (4, 8) or any(each != bits[0] for each in bits) or len(tensor.shape) != 2:
        return None
    return Tensor("float32", (tensor.shape[0], tensor.shape[1] * 32 // bits[0]))
