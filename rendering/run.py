"""The render run: conversations to a token dataset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Unpack

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, output_location, path_name, temporary_folder
from tokscore.dataset.manifest import Manifest, Part, made_by, read_manifest
from tokscore.dataset.reading import Dataset
from tokscore.dataset.resuming import (
    check_some_succeeded,
    finished_elsewhere,
    forget_claims,
    forget_parts,
    prepare_output,
    record_tokenizer_details,
)
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.settings import shows_settings
from tokscore.rendering.attribution.settings import RenderKeywords, RenderSettings
from tokscore.rendering.executors.claimed import begin, check_none_failed, claimed
from tokscore.rendering.executors.execution import HERE, Execution
from tokscore.rendering.inputs import Inputs, open_source, warnings_about
from tokscore.rendering.render_work import RenderWork
from tokscore.rendering.source import ConversationSource, TokenSource
from tokscore.rendering.workers import (
    PARTS_PER_WORKER,
    ClaimedJob,
    PartJob,
    PartResult,
    choose_library,
    on_processes,
)

# Called after each conversation with (conversations done, tokens done).
Progress = Callable[[int, int], None]
# Called with a line for the user, such as `print`.
Tell = Callable[[str], None]


def silent(*_given: object) -> None:
    """Takes what a run tells, and tells nobody."""


def output_folder(out: PathName | None, kind: DatasetKind) -> Path:
    """Where a dataset goes: `out`, or a folder that is deleted when the process ends.

    Its name enters what is made from the dataset, so that it is always the same.
    """
    return temporary_folder() / kind.value if out is None else output_location(out)


@shows_settings(RenderSettings)
def render(
    source: Inputs,
    model: PathName,
    *,
    out: PathName | None = None,
    on_error: str = OnError.FAIL,
    workers: int = 1,
    progress: Progress = silent,
    tell: Tell = silent,
    **settings: Unpack[RenderKeywords],
) -> Dataset:
    """Conversations as a token dataset: what `tokscore render` writes.

    Args:
        source: A path or pattern, several of them, or records: mappings in any format that files may have.
        model: Model directory or hub id whose tokenizer and template render.
        out: Directory of the dataset, new or of the same run, which goes on where it stopped. Without it, the
            dataset is temporary and deleted when the process ends.
        on_error: `"fail"` at the first bad conversation, or `"skip"` it: see `Dataset.failures`.
        workers: Processes that render. More than one start anew, so that a script needs
            `if __name__ == "__main__":`.
        progress: Called with the conversations and tokens done.
        tell: Called with lines for the user, such as `print`.
        **settings: Those of `RenderSettings`.

    Returns:
        The dataset: `load_tokens` makes a frame of it, its `conversations()` are numpy arrays, and
        `scoring.score` takes it.

    Raises:
        UsageError: Arguments that do not exist or do not go together, or `out` holds something else.
        ConversationError: A conversation cannot be rendered and `on_error` is fail.
        InputError: An input, the tokenizer or the template cannot be used, or every conversation failed.
    """
    skipping = choose(OnError, on_error, "on_error")
    folder = output_folder(out, DatasetKind.TOKENS)
    opened = open_source(source, path_name(model), out=folder, **settings)
    if not isinstance(opened, ConversationSource):
        raise UsageError(f"{source} is a dataset already; expected conversations.")
    for line in warnings_about(opened):
        tell(line)
    render_source(opened, folder, on_error=skipping, workers=workers, progress=progress, tell=tell)
    return Dataset(folder)


class RenderSummary(NamedTuple):
    """The summary of a run.

    Attributes:
        n_conversations: Rendered now.
        n_tokens: Written now.
        n_failed: Listed in errors/ now.
        n_parts_skipped: Parts that an earlier run had finished.
        n_parts: All parts.
        tokenizer: The library that made the ids.
        tokenizer_reason: Why it is not fastokens, where that was to be used.
    """

    n_conversations: int
    n_tokens: int
    n_failed: int
    n_parts_skipped: int
    n_parts: int
    tokenizer: str | None
    tokenizer_reason: str | None


def render_source(
    source: TokenSource,
    out: Path,
    *,
    on_error: OnError = OnError.FAIL,
    workers: int = 1,
    progress: Progress = lambda _conversations, _tokens: None,
    execution: Execution = HERE,
    tell: Tell = silent,
) -> RenderSummary:
    """Write the token dataset of `source` to `out`; parts that are there already are kept.

    Args:
        source: Planned conversations.
        out: Directory, new or of the same plan.
        on_error: What one bad conversation does.
        workers: Processes that write parts; few parts are written here. More than one need a picklable source
            and `if __name__ == "__main__":` in the script that calls this. The files do not depend on it.
        progress: Called after each conversation, with several workers after each part.
        execution: Which processes render, instead of workers; then `progress` is called with parts.
        tell: Called with lines for the user.

    Raises:
        UsageError: `out` holds another run.
        ConversationError: A conversation cannot be rendered and `on_error` is fail.
        InputError: Every conversation failed.
        TokscoreError: Processes that had a part ended again and again.
    """
    out, on_error = output_location(out), choose(OnError, on_error, "on_error")
    choose_library(source, workers)
    manifest = Manifest(
        kind=DatasetKind.TOKENS,
        tokscore_version=version("tokscore"),
        settings=source.settings,
        tokenizer=source.tokenizer,
        model=None,
        inputs=list(source.inputs),
        parts=list(source.parts),
        tokenizer_details=source.tokenizer_details,
    ).sealed()
    done = prepare_output(out, manifest, source.vocabulary)
    parts = [part for part in manifest.parts if part.index not in done]

    def write() -> PartResult:
        job = PartJob(source, out, manifest, on_error)
        if execution.is_here or not parts:
            return _write(job, parts, workers, progress, tell)
        return _write_elsewhere(job, parts, execution, progress, tell)

    total = write()
    if total.doubt is not None and source.text_ids is not None:
        # What it made cannot be told from what it made wrong.
        source.text_ids.switch_back(total.doubt)
        record_tokenizer_details(out, source.text_ids.details)
        forget_parts(out, manifest)
        done, parts = set(), manifest.parts
        total = write()
    check_none_failed(out, manifest, manifest.parts)
    check_some_succeeded(out, [part.index for part in manifest.parts], "rendered")
    forget_claims(out, manifest)
    return RenderSummary(
        total.n_conversations,
        total.n_tokens,
        total.n_failed,
        len(done),
        len(manifest.parts),
        *made_by(read_manifest(out)),
    )


def _write_elsewhere(
    job: PartJob, parts: Sequence[Part], execution: Execution, progress: Progress, tell: Tell
) -> PartResult:
    """The sum of the parts that replicas write, or that ids are in doubt."""
    sizes = {part.index: job.source.part_bytes(part) for part in parts}
    totals = execution.run(RenderWork(job), parts, sizes, gpus_each=0, progress=progress, tell=tell)
    n_conversations, n_tokens, n_failed = map(totals.count, ("n_conversations", "n_tokens", "n_failed"))
    return PartResult(n_conversations, n_tokens, n_failed, doubt=totals.doubt)


def _write(job: PartJob, parts: Sequence[Part], workers: int, progress: Progress, tell: Tell) -> PartResult:
    """The sum of the parts, up to the first that is in doubt."""
    begin(job.out, job.manifest, parts, tell)
    total = PartResult()
    with closing(_results(job, parts, workers, progress)) as results:
        for result in results:
            total = PartResult(
                total.n_conversations + result.n_conversations,
                total.n_tokens + result.n_tokens,
                total.n_failed + result.n_failed,
                total.first_failure or result.first_failure,
                result.doubt,
            )
            progress(total.n_conversations + total.n_failed, total.n_tokens)
            if result.elsewhere is not None:
                tell(finished_elsewhere(result.elsewhere))
            if result.doubt is not None:
                break
    return total


def _results(job: PartJob, parts: Sequence[Part], workers: int, progress: Progress) -> Generator[PartResult]:
    n_workers = min(workers, len(parts) // PARTS_PER_WORKER)
    if n_workers <= 1:
        yield from _write_here(job, parts, progress)
        return
    yield from on_processes(ClaimedJob(job), n_workers, parts)
    # What other runs had, and did not finish.
    yield from _write_here(job, parts, silent)


def _write_here(job: PartJob, parts: Sequence[Part], progress: Progress) -> Generator[PartResult]:
    n_conversations = n_tokens = 0
    with closing(claimed(job.out, job.manifest, parts)) as mine:
        for part, count in mine:

            def seen(n: int, count: Callable[[int], None] = count) -> None:
                nonlocal n_conversations, n_tokens
                n_conversations, n_tokens = n_conversations + 1, n_tokens + n
                count(n)
                progress(n_conversations, n_tokens)

            yield job.run(part, seen)
