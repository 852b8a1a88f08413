"""A model without numbers: its configuration held against the names and shapes in its files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokscore.dataset.errors import InputError, agreeing, counted, is_about_code, needs_code
from tokscore.scoring.engines.checkpoint.config import first_line
from tokscore.scoring.engines.checkpoint.messages import quiet
from tokscore.scoring.engines.checkpoint.packed import plain_weights
from tokscore.scoring.engines.checkpoint.quantization import quantization_of, without_quantization
from tokscore.scoring.engines.checkpoint.weights import MAX_EXCESS, LoadReport, Tensor, read_tensors

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class UnknownModelError(InputError):
    """transformers cannot build a model of this configuration."""


class _Shape(torch.Tensor):
    """A tensor without numbers that stays so wherever transformers moves it."""

    def to(self, *_: Any, **__: Any) -> torch.Tensor:  # Any: as torch.Tensor
        return self


def check_files(
    config: PretrainedConfig, files: Sequence[Path], name: str, *, trust_remote_code: bool = False
) -> LoadReport | None:
    """How weights and configuration go together, before any weight is read.

    Packed weights count as what they stand for.

    Args:
        config: Of the model.
        files: Those of the weights.
        name: Of the model, for messages.
        trust_remote_code: Whether code in the folder may run.

    Returns:
        None where the layout of packed weights is not known here.

    Raises:
        InputError: As `check_skeleton` and `compare`.
    """
    stored, quantization = read_tensors(files, name), quantization_of(config)
    missing: list[str] = []
    if quantization is not None:
        plain = plain_weights(stored, quantization)
        if plain is None:
            return None
        config, stored, missing = without_quantization(config), plain.tensors, plain.missing
    check_skeleton(config, stored, name, trust_remote_code=trust_remote_code)
    report = compare(config, stored, name, trust_remote_code=trust_remote_code)
    return report._replace(missing=sorted({*report.missing, *missing})).without_zeros(files)


def check_skeleton(
    config: PretrainedConfig, stored: Mapping[str, Tensor], name: str, *, trust_remote_code: bool = False
) -> None:
    """Refuse a configuration that cannot be built, is far larger than the weights, or not of packed ones.

    Args:
        config: Of the model.
        stored: Its weights.
        name: Of the model, for messages.
        trust_remote_code: Whether code in the folder may run.

    Raises:
        InputError: With what was found; `UnknownModelError` where transformers knows no such model.
    """
    integers = [key for key, tensor in stored.items() if tensor.dtype == "int8" and key.endswith("weight")]
    if integers:
        raise InputError(
            f"{name}: {counted(len(integers), 'weight')} {agreeing(len(integers), 'is', 'are')} of integers, "
            "and config.json has no quantization_config that says what they stand for; the first is "
            f"{integers[0]}."
        )
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0) or 0
    if isinstance(layers, int) and layers > len(stored):
        raise InputError(
            f"{name}: config.json has {counted(layers, 'layer')}, and the files only "
            f"{counted(len(stored), 'weight')}."
        )
    model = _build(config, name, trust_remote_code)
    described = sum(parameter.numel() for parameter in model.parameters())
    held = sum(math.prod(tensor.shape) for tensor in stored.values())
    if described > MAX_EXCESS * max(held, 1):
        raise InputError(
            f"{name}: config.json describes weights with {described:,} numbers; the files hold {held:,}."
        )


def compare(
    config: PretrainedConfig, stored: Mapping[str, Tensor], name: str, *, trust_remote_code: bool = False
) -> LoadReport:
    """Messages of transformers when it loads weights of these names and shapes; no weight is read.

    Args:
        config: Of the model.
        stored: Its weights.
        name: Of the model, for messages.
        trust_remote_code: Whether code in the folder may run.

    Raises:
        InputError: transformers cannot load such a model; `UnknownModelError` where it cannot build it.
    """
    weights = {
        key: torch.empty(tensor.shape, dtype=_type_of(tensor), device="meta").as_subclass(_Shape)
        for key, tensor in stored.items()
    }
    kind = type(_build(config, name, trust_remote_code))
    try:
        with quiet():
            _, report = kind.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except Exception as error:  # It raises its own, torch's and built-in errors.
        raise InputError(f"{name}: transformers cannot load it: {first_line(error)}") from error
    return LoadReport.of(report)


def _type_of(tensor: Tensor) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    return dtype if dtype.itemsize > 1 else torch.float32


def _build(config: PretrainedConfig, name: str, trust_remote_code: bool) -> Any:  # Any: of transformers
    import transformers

    # Models of text and images are none that AutoModelForCausalLM knows.
    architecture = next(iter(config.architectures or ()), "")
    own = None if trust_remote_code else getattr(transformers, architecture, None)
    try:
        with torch.device("meta"), quiet():
            if own is not None:
                return own(config)
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # It raises its own, torch's and built-in errors.
        if not trust_remote_code and is_about_code(error):
            raise InputError(needs_code(name)) from error
        raise UnknownModelError(f"{name}: transformers cannot build it: {first_line(error)}") from error
