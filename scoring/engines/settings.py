"""The settings of an engine: what is asked of it, and how it is to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from tokscore.dataset.errors import UsageError
from tokscore.dataset.settings import Settings, Usual, definitions, setting
from tokscore.scoring.engines.registry import AUTO, ENGINES, engine_names, load_target

# In `engine_arg` of every engine: the tokens that the model takes, where its configuration says otherwise.
LENGTH_ARGUMENT = "max_model_len"
# Settings that every engine takes.
COMMON = {"engine", "top_k", "dtype", "temperature", "sharing"}


class Dtype(StrEnum):
    """Type a model computes in; auto is the one that its configuration states."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class HeadDtype(StrEnum):
    """Type of the logits; auto is float32 where it costs little."""

    AUTO = "auto"
    MODEL = "model"
    FLOAT32 = "float32"


class ServerKind(StrEnum):
    """How a server is asked; auto is the first way in which it answers."""

    AUTO = "auto"
    SGLANG = "sglang"
    VLLM = "vllm"
    VLLM_TOKENS = "vllm-tokens"
    ECHO = "echo"


class EnginePath(StrEnum):
    """How the numbers are taken from vLLM; auto is the fastest that passes its self-test."""

    AUTO = "auto"
    FUSED = "fused"
    TENSORS = "tensors"
    FLAT = "flat"


class Sharing(StrEnum):
    """Whether what sequences have in common is computed once; auto where it saves more than 5 %."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Settings):
    """All that an engine is told beside the model."""

    engine: str = setting(
        AUTO,
        "vllm, transformers, or whichever of them can run here (auto); server for a model behind --url.",
        choices=engine_names,
    )
    top_k: int = setting(
        Usual(20),
        "Most likely ids to keep at every position; if left out, all of a vocabulary that has fewer.",
        metavar="K",
        at_least=0,
    )
    dtype: Dtype = setting(Dtype.AUTO, "Type to compute in; auto is the model's own.")
    temperature: float = setting(1.0, "Divide the logits by T before the softmax.", metavar="T", above=0)
    head_dtype: HeadDtype = setting(
        HeadDtype.AUTO, "Type of the logits: the model's, float32, or float32 where it costs little (auto)."
    )
    engine_path: EnginePath = setting(
        EnginePath.AUTO, "How vLLM's numbers are taken; auto is the fastest that passes its self-test."
    )
    tensor_parallel_size: int = setting(1, "Devices that share each layer (vLLM).", metavar="N", at_least=1)
    pipeline_parallel_size: int = setting(1, "Devices that share the layers (vLLM).", metavar="N", at_least=1)
    quantization: str | None = setting(
        None, "Method for vLLM, where the model does not state its own.", metavar="NAME"
    )
    batch_tokens: int | None = setting(
        None, "Tokens of one forward pass; the engine's choice if left out.", metavar="N", at_least=1
    )
    sharing: Sharing = setting(
        Sharing.AUTO,
        "Compute what sequences have in common from their first token on once, where that saves more than "
        "5 % (auto).",
    )
    engine_arg: Mapping[str, Any] = setting(  # Any: JSON values
        {},
        "Passed on to vLLM's LLM; VALUE is JSON, otherwise text. May be given several times. Some are "
        "tokscore's: max_model_len=N, the tokens that the model takes where its configuration says otherwise "
        "(all engines); logits_bytes=N, the memory for logits (vllm); timeout_s=N for one answer and "
        "retry_s=N for all tries of a request (server).",
        metavar="NAME=VALUE",
    )
    url: tuple[str, ...] = setting(
        (),
        "Address of a server that has the model, which is then not loaded here. May be given several times, "
        "for replicas.",
        metavar="URL",
    )
    server_kind: ServerKind = setting(
        ServerKind.AUTO, "How the server is asked; auto finds out by asking it (server)."
    )
    server_model: str | None = setting(
        None, "The server's name of the model, where it has several (server).", metavar="NAME"
    )
    concurrency: int = setting(
        64,
        "Most requests at once to each server; fewer while more bring nothing (server).",
        metavar="N",
        at_least=1,
    )


class EngineKeywords(TypedDict, total=False):
    """The same as keyword arguments, for type checkers."""

    engine: str
    top_k: int
    dtype: str
    temperature: float
    head_dtype: str
    engine_path: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    quantization: str | None
    batch_tokens: int | None
    sharing: str
    engine_arg: Mapping[str, Any]  # Any: JSON values
    url: Sequence[str]
    server_kind: str
    server_model: str | None
    concurrency: int


def check_settings(settings: EngineSettings, name: str) -> None:
    """Refuse what an engine does not take.

    Args:
        settings: As given.
        name: Of the engine.

    Raises:
        UsageError: A setting that it does not know, a value that it cannot have, or what its own check says.
    """
    row = ENGINES[name]
    check_whole(settings.engine_arg, LENGTH_ARGUMENT)
    arguments = sorted(settings.engine_arg.keys() - {LENGTH_ARGUMENT})
    if arguments and "engine_arg" not in row.settings:
        raise UsageError(
            f"`engine_arg` {', '.join(arguments)} is for {_takers('engine_arg')}; the engine is {name}, "
            f"which takes {LENGTH_ARGUMENT} alone."
        )
    for each in definitions(EngineSettings):
        value = getattr(settings, each.name)
        if each.name in COMMON or each.name == "engine_arg" or value == each.default:
            continue
        if each.name not in row.settings:
            raise UsageError(f"`{each.name}` is for {_takers(each.name)}; the engine is {name}.")
        allowed = row.settings[each.name]
        if allowed is not None and value not in allowed:
            raise UsageError(f"`{each.name}` is {value}; the {name} engine takes {' or '.join(allowed)}.")
    if row.check is not None:
        load_target(row.check)(settings)


def _takers(setting_name: str) -> str:
    return " and ".join(name for name, row in ENGINES.items() if setting_name in row.settings) or "no engine"


def check_whole(arguments: Mapping[str, Any], name: str) -> None:  # Any: JSON values
    """Raise a `UsageError` where an argument is given and no whole number above 0."""
    value = arguments.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"`engine_arg` {name} is {value!r}; expected a whole number above 0.")
