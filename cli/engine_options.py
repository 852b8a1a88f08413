"""Options about the engine, for the commands that start one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from tokscore.cli.options import option

if TYPE_CHECKING:
    from tokscore.scoring import EngineOptions


class HeadDtypeChoice(StrEnum):
    """Type of the logits."""

    AUTO = "auto"
    MODEL = "model"
    FLOAT32 = "float32"


class EnginePathChoice(StrEnum):
    """How the numbers are taken from vLLM."""

    AUTO = "auto"
    FUSED = "fused"
    TENSORS = "tensors"
    FLAT = "flat"


HeadDtype = Annotated[
    HeadDtypeChoice,
    option(
        "--head-dtype",
        help="Type of the logits: the model's, float32, or float32 where it costs little (auto).",
    ),
]
EnginePath = Annotated[
    EnginePathChoice,
    option(
        "--engine-path",
        help="How vLLM's numbers are taken; auto is the fastest that passes its self-test.",
    ),
]
TensorParallelSize = Annotated[
    int, option("--tensor-parallel-size", metavar="N", min=1, help="Devices that share each layer (vLLM).")
]
PipelineParallelSize = Annotated[
    int, option("--pipeline-parallel-size", metavar="N", min=1, help="Devices that share the layers (vLLM).")
]
Quantization = Annotated[
    str | None,
    option("--quantization", metavar="NAME", help="Method for vLLM, where the model does not state its own."),
]
BatchTokens = Annotated[
    int | None,
    option(
        "--batch-tokens",
        metavar="N",
        min=1,
        help="Tokens of one forward pass; the engine's choice if left out.",
    ),
]
EngineArguments = Annotated[
    list[str] | None,
    option(
        "--engine-arg",
        metavar="NAME=VALUE",
        help="Passed on to vLLM's LLM; VALUE is JSON, otherwise text. May be given several times. Two are "
        "tokscore's: max_model_len=N, the tokens that the model takes where its configuration says otherwise "
        "(all engines), and logits_bytes=N, the memory for logits.",
    ),
]


def make_engine_options(
    head_dtype: HeadDtypeChoice,
    path: EnginePathChoice,
    tensor_parallel: int,
    pipeline_parallel: int,
    quantization: str | None,
    batch_tokens: int | None,
    arguments: Sequence[str] | None,
) -> EngineOptions:
    """What the options above say.

    Raises:
        UsageError: An argument is no NAME=VALUE, or given twice.
    """
    from tokscore.scoring import EngineOptions

    return EngineOptions(
        head_dtype=head_dtype.value,
        path=path.value,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        quantization=quantization,
        batch_tokens=batch_tokens,
        arguments=parse_arguments(arguments or ()),
    )


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:  # Any: JSON values
    """NAME=VALUE pairs as a mapping; values that are no JSON are text."""
    from tokscore.dataset.errors import UsageError

    found: dict[str, Any] = {}  # Any: JSON values
    for argument in arguments:
        name, equals, value = argument.partition("=")
        # The library's names have underscores, its own command line's have dashes.
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name.isidentifier():
            raise UsageError(f"--engine-arg is {argument!r}; expected NAME=VALUE, such as max_num_seqs=64.")
        if name in found:
            raise UsageError(f"--engine-arg {name} is given twice.")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found
