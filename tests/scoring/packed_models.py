"""Tiny models whose weights are packed as GPTQ, AWQ and compressed-tensors pack them, beside what they stand for.

Scales and numbers are such that every weight is exact in bfloat16, so that only activations are rounded.
`python -m tests.scoring.packed_models FOLDER` writes all of them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.scoring.tiny_models import BASE, change_config, change_weights, save

GROUP = 32
SHAPE = BASE | {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_key_value_heads": 2}
# Of eight 4-bit numbers in an int32, as AutoAWQ's kernels read them.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]
Pack = Callable[[str, "Groups"], Tensors]


class Groups(NamedTuple):
    """A weight in integers: `(numbers - zeros) * scales`, by groups of inputs.

    Attributes:
        numbers: Unsigned, [out, in].
        zeros: [out, groups].
        scales: float32 [out, groups].
        group_of: Group of every input, [in].
        bits: Of a number.
    """

    numbers: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    group_of: torch.Tensor
    bits: int

    def weight(self) -> torch.Tensor:
        """What the numbers stand for, float32 [out, in]."""
        return (self.numbers - self.zeros[:, self.group_of]) * self.scales[:, self.group_of]


def packed(numbers: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Unsigned numbers [rows, columns] in int32 [rows, columns * bits / 32], the first in the lowest bits."""
    n = 32 // bits
    found = torch.zeros((len(numbers), numbers.shape[1] // n), dtype=torch.int64)
    for place, index in enumerate(order or range(n)):
        found |= numbers[:, index::n].long() << (bits * place)
    return found.to(torch.int32) if found.max() < 2**31 else (found - (found >> 31 << 32)).to(torch.int32)


def random_groups(
    n_out: int,
    n_in: int,
    chance: torch.Generator,
    *,
    bits: int,
    is_symmetric: bool = True,
    is_ordered: bool = False,
    reach: int | None = None,
) -> Groups:
    """Random numbers, in groups of neighbours or, as GPTQ's `desc_act` has them, of any inputs.

    With `reach` all inputs are one group, and numbers as far from the middle at most.
    """
    n_groups = n_in // GROUP if reach is None else 1
    middle, most = 2 ** (bits - 1), 2**bits
    # Eight bits: differences of 4 bits and scales of 4 bits, or of 7 and 1.
    spread = torch.randint(8 if bits == 4 else 1, (n_out, n_groups), generator=chance)
    scales = 2.0 ** (-5 if bits == 4 else -9) * (1 + spread / 8)
    zeros = torch.full((n_out, n_groups), middle)
    numbers = torch.randint(1, most, (n_out, n_in), generator=chance)
    if reach is not None:
        numbers = torch.randint(middle - reach, middle + reach + 1, (n_out, n_in), generator=chance)
        scales = scales * 127 / reach
    if not is_symmetric:
        zeros = torch.randint(1, most, (n_out, n_groups), generator=chance)
    group_of = torch.arange(n_in) * n_groups // n_in
    if is_ordered:
        group_of = group_of[torch.randperm(n_in, generator=chance)]
    return Groups(numbers, zeros, scales, group_of, bits)


def gptq(name: str, groups: Groups, *, is_v2: bool = False) -> Tensors:
    """Inputs down, outputs across; the older format stores zeros less one."""
    stored_zeros = groups.zeros - (0 if is_v2 else 1)
    return {
        f"{name}.qweight": packed(groups.numbers, groups.bits).T,
        f"{name}.qzeros": packed(stored_zeros.T, groups.bits),
        f"{name}.scales": groups.scales.T.half(),
        f"{name}.g_idx": groups.group_of.int(),
    }


def awq(name: str, groups: Groups) -> Tensors:
    """Inputs down, outputs across and interleaved."""
    return {
        f"{name}.qweight": packed(groups.numbers.T, 4, AWQ_ORDER),
        f"{name}.qzeros": packed(groups.zeros.T, 4, AWQ_ORDER),
        f"{name}.scales": groups.scales.T.half(),
    }


def compressed(name: str, groups: Groups, *, is_symmetric: bool) -> Tensors:
    """Signed numbers plus half of their range, packed along the inputs."""
    n_out, n_in = groups.numbers.shape
    found = {
        f"{name}.weight_packed": packed(groups.numbers, groups.bits),
        f"{name}.weight_scale": groups.scales.bfloat16(),
        f"{name}.weight_shape": torch.tensor([n_out, n_in]),
    }
    if not is_symmetric:
        found[f"{name}.weight_zero_point"] = packed(groups.zeros.T, groups.bits).T
    return found


def of_bytes(name: str, groups: Groups, *, dtype: torch.dtype) -> Tensors:
    """Signed numbers as they are, and a scale for each output."""
    numbers = groups.numbers - groups.zeros
    return {f"{name}.weight": numbers.to(dtype), f"{name}.weight_scale": groups.scales.bfloat16()}


def make(path: Path, pack: Pack, config: Mapping[str, Any], **kind: Any) -> None:
    """Write a model with packed weights in `path`, and `path`-plain with what they stand for."""
    save(path, "LlamaForCausalLM", "LlamaConfig", **SHAPE)
    plain = path.with_name(f"{path.name}-plain")
    chance = torch.Generator().manual_seed(0)
    found: Tensors = {}
    whole: Tensors = {}

    def replaced(weights: Tensors) -> Tensors:
        for name, weight in sorted(weights.items()):
            if name.endswith("proj.weight"):
                groups = random_groups(*weight.shape, chance, **kind)
                found.update(pack(name.removesuffix(".weight"), groups))
                whole[name] = groups.weight()
            else:
                found[name] = whole[name] = weight.bfloat16().float()
        return found

    shutil.copytree(path, plain)
    change_weights(path, lambda weights: {k: v.contiguous() for k, v in replaced(weights).items()})
    change_weights(plain, lambda _: whole)
    change_config(path, quantization_config=dict(config))


def _gptq(
    bits: int, *, is_symmetric: bool, is_ordered: bool = False, is_v2: bool = False, **more: Any
) -> Any:
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "desc_act": is_ordered,
        "sym": is_symmetric,
        **({"checkpoint_format": "gptq_v2"} if is_v2 else {}),
        **more,
    }
    kind = {"bits": bits, "is_symmetric": is_symmetric, "is_ordered": is_ordered}
    return partial(make, pack=partial(gptq, is_v2=is_v2), config=config, **kind)


def _compressed(bits: int, *, is_symmetric: bool) -> Any:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": is_symmetric,
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    pack = partial(compressed, is_symmetric=is_symmetric)
    return partial(make, pack=pack, config=config, bits=bits, is_symmetric=is_symmetric)


def _of_bytes(kind: str, *, has_activations: bool) -> Any:
    """Whole numbers or floats of 8 bits, where `has_activations` of what goes into a layer, too."""
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel", "dynamic": False}
    inputs = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs if has_activations else None,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    dtype = {"int": torch.int8, "float": torch.float8_e4m3fn}[kind]
    # The integers that float8 has.
    reach = {"int": 127, "float": 16}[kind]
    return partial(make, pack=partial(of_bytes, dtype=dtype), config=config, bits=8, reach=reach)


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
MODELS: Mapping[str, Callable[[Path], None]] = {
    "gptq": _gptq(4, is_symmetric=True),
    "gptq-asymmetric": _gptq(4, is_symmetric=False),
    "gptq-ordered": _gptq(4, is_symmetric=True, is_ordered=True),
    "gptq-v2": _gptq(4, is_symmetric=False, is_v2=True),
    "gptq-8": _gptq(8, is_symmetric=True),
    "awq": partial(make, pack=awq, config=_AWQ, bits=4, is_symmetric=False),
    "compressed": _compressed(4, is_symmetric=True),
    "compressed-asymmetric": _compressed(4, is_symmetric=False),
    "compressed-8": _compressed(8, is_symmetric=True),
    "int8": _of_bytes("int", has_activations=False),
    "int8-activations": _of_bytes("int", has_activations=True),
    "fp8": _of_bytes("float", has_activations=False),
    "fp8-activations": _of_bytes("float", has_activations=True),
}

if __name__ == "__main__":
    for wanted in sys.argv[2:] or MODELS:
        MODELS[wanted](Path(sys.argv[1]) / wanted)
