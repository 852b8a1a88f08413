"""Scoring in one call: conversations or tokens to a score dataset, and its scores as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.frames import load_table
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.settings import definitions, shows_settings
from tokscore.rendering.attribution.settings import RenderKeywords, RenderSettings
from tokscore.rendering.inputs import Inputs, open_source, warnings_about
from tokscore.rendering.run import Tell, output_folder, silent
from tokscore.scoring.engines.server.tokenizer import served_tokenizer
from tokscore.scoring.engines.settings import EngineKeywords, EngineSettings
from tokscore.scoring.engines.spec import plan_engine
from tokscore.scoring.listed_ids import ListedIds
from tokscore.scoring.run import Progress
from tokscore.scoring.run import score as run_score
from tokscore.scoring.selection import default_selection, parse_selection

if TYPE_CHECKING:
    import polars as pl


class ScoreKeywords(EngineKeywords, RenderKeywords, total=False):
    """Settings of engine and rendering as keyword arguments, for type checkers."""


@shows_settings(EngineSettings, RenderSettings)
def score(
    source: Inputs,
    model: PathName | None = None,
    *,
    out: PathName | None = None,
    score: str | None = None,
    max_length: int | None = None,
    at: PathName | None = None,
    on_error: str = OnError.FAIL,
    workers: int = 1,
    progress: Progress = silent,
    tell: Tell = silent,
    **settings: Unpack[ScoreKeywords],
) -> Dataset:
    """The logprob of every token as a score dataset: what `tokscore logprobs` writes.

    Args:
        source: Conversations as `rendering.render` takes them, or one token dataset.
        model: Model directory or hub id. With `url`, what the server says that it has is taken by default.
        out: Directory of the dataset, new or of the same run, which goes on where it stopped. Without it, the
            dataset is temporary and deleted when the process ends.
        score: Which tokens: `"all"`, `"sampled"`, `"content"`, `"role=ROLE"`, or several with commas. The
            others are null. All by default; of text in windows with context, those that count.
        max_length: Longer conversations become error rows.
        at: A score dataset of the same tokens; every token is also scored at the ids that it lists there
            (columns at_ids and at_logprobs), which makes the limits of `analytics.diff` narrower.
        on_error: `"fail"` at the first bad conversation, or `"skip"` it: see `Dataset.failures`.
        workers: Processes that render; more than one need `if __name__ == "__main__":` in the calling script.
        progress: Called with the tokens done and the tokens in all.
        tell: Called with lines for the user, such as `print`.
        **settings: Those of `EngineSettings`; and for conversations those of `RenderSettings`.

    Returns:
        The dataset: `load_scores` makes a frame of it, `analytics.stats` and `analytics.diff` read it.

    Raises:
        UsageError: Arguments that do not exist or do not go together, or `out` holds something else.
        ConversationError: A conversation cannot be scored and `on_error` is fail.
        InputError: An input or the model cannot be used, or every conversation failed.
        EngineError: The engine is not installed, cannot start, or failed.
    """
    skipping = choose(OnError, on_error, "on_error")
    asked = None if score is None else parse_selection(score)
    if max_length is not None and max_length < 1:
        raise UsageError(f"`max_length` is {max_length}; expected at least 1.")
    given: dict[str, Any] = dict(settings)  # Any: of either kind
    engine = EngineSettings(
        **{each.name: given.pop(each.name) for each in definitions(EngineSettings) if each.name in given}
    )
    rendering = RenderSettings(**given)
    if model is None:
        model = served_tokenizer(engine, rendering.revision, trust_remote_code=rendering.trust_remote_code)
        tell(f"the server has {model}, whose tokenizer is taken.")
    name, folder = path_name(model), output_folder(out, DatasetKind.SCORES)
    opened = open_source(source, name, rendering, out=folder)
    for line in warnings_about(opened):
        tell(line)
    spec = plan_engine(
        name, engine, revision=rendering.revision, trust_remote_code=rendering.trust_remote_code
    )
    run_score(
        opened,
        folder,
        spec,
        on_error=skipping,
        selection=default_selection(opened.settings) if asked is None else asked,
        max_length=max_length,
        listed=None if at is None else ListedIds(at),
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
