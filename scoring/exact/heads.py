"""The head of a model that vLLM has run, kept in a file and built again without the rest of the model.

The model is built on torch's meta device, where weights have shapes and no memory. Then the weights that
`compute_logits` reads are put into it, so that scales, caps and whatever else the model does to its logits
are done by its own code.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

import torch

# Objects of vLLM, which has no types for us.
Vllm = Any
# What a head does to its weights after loading them must be known, since it is done again.
_PLAIN_METHODS = {"UnquantizedEmbeddingMethod", "UnquantizedLinearMethod"}


class Head(NamedTuple):
    """A model that has a head and no body.

    Attributes:
        model: It, with `compute_logits`.
        width: Of the hidden states that it takes.
        dtype: Of these.
    """

    model: Vllm
    width: int
    dtype: torch.dtype


def save_head(model: Vllm, config: Vllm, states: torch.Tensor, file: BinaryIO) -> None:
    """Write what `compute_logits` of a model reads.

    Args:
        model: Of vLLM, loaded.
        config: Its `VllmConfig`.
        states: Some of its last hidden states, [rows, width].
        file: Of any length; it begins with the head afterwards.

    Raises:
        ValueError: Its weights are quantized, or in places that are not known.
    """
    cloudpickle = import_module("cloudpickle")  # comes with vLLM, without types

    tensors: dict[str, torch.Tensor] = {}
    modules = _modules_of_head(model, states[:1])
    for name, module in modules.items():
        method = type(getattr(module, "quant_method", None)).__name__
        if method not in {*_PLAIN_METHODS, "NoneType"}:
            raise ValueError(f"the head is quantized ({method}) and cannot be run beside another model")
        prefix = f"{name}." if name else ""
        held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        tensors |= {f"{prefix}{leaf}": tensor.detach() for leaf, tensor in held}
    if not tensors:
        raise ValueError("this model makes its logits in a way that is not known")
    settings = torch.frombuffer(bytearray(cloudpickle.dumps(_plain_config(config))), dtype=torch.uint8)
    torch.save(
        {
            "config": settings,
            "modules": list(modules),
            "tensors": tensors,
            "example": torch.empty((0, states.shape[1]), dtype=states.dtype),
        },
        file,
    )


def _modules_of_head(model: Vllm, states: torch.Tensor) -> Mapping[str, torch.nn.Module]:
    """The modules of a model, by name, that run when logits are made or are handed to those that do."""
    used: set[torch.nn.Module] = set()

    def note(module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        used.add(module)
        used.update(each for each in arguments if isinstance(each, torch.nn.Module))

    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        model.compute_logits(states)
    finally:
        hook.remove()
    return {name: module for name, module in model.named_modules() if module in used}


def _plain_config(config: Vllm) -> Vllm:
    """The configuration without the layers that a loaded model has registered in it, and no compilation."""
    from vllm.config import CompilationMode

    plain = copy.copy(config)
    plain.compilation_config = copy.copy(config.compilation_config)
    plain.compilation_config.static_forward_context = {}
    plain.compilation_config.static_all_moe_layers = []
    plain.compilation_config.mode = CompilationMode.NONE
    return plain


def load_head(path: str, device: torch.device) -> Head:
    """The head of `save_head`; only its weights take memory.

    Raises:
        ValueError: The model cannot be built without its weights.
    """
    cloudpickle = import_module("cloudpickle")  # comes with vLLM, without types
    from vllm.model_executor.model_loader.utils import initialize_model

    saved = torch.load(path, map_location=device, weights_only=True)
    config = cloudpickle.loads(saved["config"].cpu().numpy().tobytes())
    dtype = config.model_config.dtype
    with _rotary_tables_apart(), _default_dtype(dtype), torch.device("meta"):
        model = initialize_model(vllm_config=config)
    for name, tensor in saved["tensors"].items():
        place, _, leaf = name.rpartition(".")
        module = model.get_submodule(place)
        if leaf in module._buffers:
            module._buffers[leaf] = tensor
        else:
            module._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
    for name in saved["modules"]:
        module = model.get_submodule(name)
        method = getattr(module, "quant_method", None)
        if method is not None and "weight" in module._parameters:
            method.process_weights_after_loading(module)
    example = saved["example"]
    return Head(model, example.shape[1], example.dtype)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _rotary_tables_apart() -> Iterator[None]:
    """VLLM shares tables of positions among models; those without memory must not reach another one."""
    from vllm.model_executor.layers import rotary_embedding

    shared: dict[Any, Any] = getattr(rotary_embedding, "_ROPE_DICT", {})  # Any: vLLM's
    before = dict(shared)
    shared.clear()
    try:
        yield
    finally:
        shared.clear()
        shared.update(before)
