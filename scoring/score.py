"""Scoring in one call: conversations or tokens to a score dataset, and its scores as a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.frames import load_table
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.rendering.inputs import Inputs, input_names, open_inputs, warnings_about
from tokscore.rendering.run import RenderSettings, Tell, output_folder, silent
from tokscore.scoring.engines.spec import EngineOptions, plan_engine
from tokscore.scoring.run import Progress
from tokscore.scoring.run import score as run_score
from tokscore.scoring.selection import parse_selection

if TYPE_CHECKING:
    import polars as pl


def score(
    source: Inputs,
    model: PathName,
    *,
    out: PathName | None = None,
    engine: str = "auto",
    top_k: int = 20,
    dtype: str = "auto",
    temperature: float = 1.0,
    score: str = "all",
    max_length: int | None = None,
    head_dtype: str = "auto",
    engine_path: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    quantization: str | None = None,
    batch_tokens: int | None = None,
    engine_arg: Mapping[str, Any] | None = None,  # Any: JSON values
    on_error: str = OnError.FAIL,
    revision: str | None = None,
    trust_remote_code: bool = False,
    workers: int = 1,
    progress: Progress = silent,
    tell: Tell = silent,
    **rendering: Unpack[RenderSettings],
) -> Dataset:
    """The logprob of every token as a score dataset: what `tokscore logprobs` writes.

    Args:
        source: Conversations as `rendering.render` takes them, or one token dataset.
        model: Model directory or hub id.
        out: Directory of the dataset, new or of the same run, which goes on where it stopped. Without it, the
            dataset is temporary and deleted when the process ends.
        engine: `"vllm"`, `"transformers"`, or whichever of them can run here.
        top_k: Most likely ids to keep at every position.
        dtype: Type to compute in; the model's own by default.
        temperature: Divides the logits before the softmax.
        score: Which tokens: `"all"`, `"sampled"`, `"content"`, `"role=ROLE"`, or several with commas. The
            others are null.
        max_length: Longer conversations become error rows.
        head_dtype: Type of the logits.
        engine_path: How the numbers are taken from vLLM.
        tensor_parallel_size: Devices that share each layer (vLLM).
        pipeline_parallel_size: Devices that share the layers (vLLM).
        quantization: Method for vLLM, where the model does not state its own.
        batch_tokens: Tokens of one forward pass.
        engine_arg: Passed on to vLLM's `LLM`, but for `max_model_len`, the tokens that the model takes where
            its configuration says otherwise, and `logits_bytes`, the memory for logits.
        on_error: `"fail"` at the first bad conversation, or `"skip"` it: see `Dataset.failures`.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Whether code that comes with the model may run.
        workers: Processes that render; more than one need `if __name__ == "__main__":` in the calling script.
        progress: Called with the tokens done and the tokens in all.
        tell: Called with lines for the user, such as `print`.
        **rendering: As of `rendering.render`, for conversations.

    Returns:
        The dataset: `load_scores` makes a frame of it, `analytics.stats` and `analytics.diff` read it.

    Raises:
        UsageError: Arguments that do not exist or do not go together, or `out` holds something else.
        ConversationError: A conversation cannot be scored and `on_error` is fail.
        InputError: An input or the model cannot be used, or every conversation failed.
        EngineError: The engine is not installed, cannot start, or failed.
    """
    skipping = choose(OnError, on_error, "on_error")
    selection = parse_selection(score)
    if max_length is not None and max_length < 1:
        raise UsageError(f"--max-length is {max_length}; expected at least 1.")
    options = EngineOptions(
        head_dtype=head_dtype,
        path=engine_path,
        tensor_parallel=tensor_parallel_size,
        pipeline_parallel=pipeline_parallel_size,
        quantization=quantization,
        batch_tokens=batch_tokens,
        arguments=dict(engine_arg or {}),
    )
    name, folder = path_name(model), output_folder(out, DatasetKind.SCORES)
    opened = open_inputs(
        input_names(source),
        name,
        out=folder,
        revision=revision,
        trust_remote_code=trust_remote_code,
        **rendering,
    )
    for line in warnings_about(opened):
        tell(line)
    spec = plan_engine(
        name,
        engine=engine,
        top_k=top_k,
        dtype=dtype,
        temperature=temperature,
        revision=revision,
        trust_remote_code=trust_remote_code,
        options=options,
    )
    run_score(
        opened,
        folder,
        spec,
        on_error=skipping,
        selection=selection,
        max_length=max_length,
        workers=workers,
        progress=progress,
        tell=tell,
    )
    return Dataset(folder)


@overload
def load_scores(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: Literal[False] = False
) -> pl.DataFrame: ...


@overload
def load_scores(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: Literal[True]
) -> pl.LazyFrame: ...


def load_scores(
    dataset: PathName, *, columns: Sequence[str] | None = None, lazy: bool = False
) -> pl.DataFrame | pl.LazyFrame:
    """The scores of a score dataset, one token a row, with the columns of `tables.SCORES`.

    Args:
        dataset: A finished score dataset, or its directory.
        columns: Which, and in this order; the others are not read. All by default.
        lazy: Give a LazyFrame, which reads nothing before it is collected.

    Raises:
        UsageError: There is no such column.
        InputError: No whole score dataset.
    """
    if lazy:
        return load_table(dataset, "scores", columns=columns, lazy=True)
    return load_table(dataset, "scores", columns=columns)
