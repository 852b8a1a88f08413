"""The render run: conversations to a token dataset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import PathName, path_name, temporary_folder
from tokscore.dataset.manifest import Manifest, Part
from tokscore.dataset.reading import Dataset, prepare_output
from tokscore.dataset.schema import DatasetKind
from tokscore.rendering.inputs import Inputs, input_names, open_inputs, warnings_about
from tokscore.rendering.source import ConversationSource, TokenSource
from tokscore.rendering.templates.limits import DEFAULT_LIMITS
from tokscore.rendering.workers import PARTS_PER_WORKER, PartJob, PartResult, on_processes

# Called after each conversation with (conversations done, tokens done).
Progress = Callable[[int, int], None]
# Called with a line for the user, such as `print`.
Tell = Callable[[str], None]


def silent(*_given: object) -> None:
    """Takes what a run tells, and tells nobody."""


class RenderSettings(TypedDict, total=False):
    """What rendering can be told, as keyword arguments; see `render`."""

    template: PathName | None
    template_kwargs: Mapping[str, Any] | None  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | PathName | None  # Any: JSON values
    add_generation_prompt: bool
    max_tokens: int | None
    truncate: str | None
    verify: str
    template_timeout: float
    template_characters: int
    template_time: str | None
    input_format: str | None
    messages: str | None


def output_folder(out: PathName | None, kind: DatasetKind) -> Path:
    """Where a dataset goes: `out`, or a folder that is deleted when the process ends.

    Its name enters what is made from the dataset, so that it is always the same.
    """
    return temporary_folder() / kind.value if out is None else Path(path_name(out))


def render(
    source: Inputs,
    model: PathName,
    *,
    out: PathName | None = None,
    template: PathName | None = None,
    template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | PathName | None = None,  # Any: JSON values
    add_generation_prompt: bool = False,
    max_tokens: int | None = None,
    truncate: str | None = None,
    verify: str = "sample",
    template_timeout: float = DEFAULT_LIMITS.cpu_s,
    template_characters: int = DEFAULT_LIMITS.n_characters,
    on_error: str = OnError.FAIL,
    revision: str | None = None,
    template_time: str | None = None,
    input_format: str | None = None,
    trust_remote_code: bool = False,
    messages: str | None = None,
    workers: int = 1,
    progress: Progress = silent,
    tell: Tell = silent,
) -> Dataset:
    """Conversations as a token dataset: what `tokscore render` writes.

    Args:
        source: A path or pattern, several of them, or records: mappings in any format that files may have.
        model: Model directory or hub id whose tokenizer and template render.
        out: Directory of the dataset, new or of the same run, which goes on where it stopped. Without it, the
            dataset is temporary and deleted when the process ends.
        template: File with a chat template to use instead of the model's own.
        template_kwargs: Variables for the template.
        tools: Tool definitions for records that carry none, or a JSON file of them.
        add_generation_prompt: End each conversation with the opener of the next answer.
        max_tokens: Most tokens a conversation may have.
        truncate: Longer conversations: `"error"`, or keep the last (`"left"`) or first (`"right"`) tokens.
        verify: Compare with transformers: all texts and a sample of ids, all (`"full"`) or none (`"off"`).
        template_timeout: Processor seconds the template may take for one conversation.
        template_characters: Characters it may build for one, beyond 50 times its length.
        on_error: `"fail"` at the first bad conversation, or `"skip"` it: see `Dataset.failures`.
        revision: Branch, tag or commit on the hub.
        template_time: ISO date and time that templates which print it take for now.
        input_format: One of `tokscore formats`; found by looking by default.
        trust_remote_code: Whether code that comes with the model may run.
        messages: Show messages to the template as they are (`"as-is"`), as servers do (`"server"`), or as
            servers do where the template refuses them or a server recorded them (`"auto"`, the default).
        workers: Processes that render. More than one start anew, so that a script needs
            `if __name__ == "__main__":`.
        progress: Called with the conversations and tokens done.
        tell: Called with lines for the user, such as `print`.

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
    opened = open_inputs(
        input_names(source),
        path_name(model),
        out=folder,
        template=template,
        template_kwargs=template_kwargs,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        max_tokens=max_tokens,
        truncate=truncate,
        verify=verify,
        template_timeout=template_timeout,
        template_characters=template_characters,
        revision=revision,
        template_time=template_time,
        input_format=input_format,
        trust_remote_code=trust_remote_code,
        messages=messages,
    )
    if not isinstance(opened, ConversationSource):
        raise UsageError(f"{source} is a dataset already; expected conversations.")
    for line in warnings_about(opened):
        tell(line)
    render_source(opened, folder, on_error=skipping, workers=workers, progress=progress)
    return Dataset(folder)


class RenderSummary(NamedTuple):
    """The summary of a run.

    Attributes:
        n_conversations: Rendered now.
        n_tokens: Written now.
        n_failed: Listed in errors/ now.
        n_parts_skipped: Parts that an earlier run had finished.
        n_parts: All parts.
    """

    n_conversations: int
    n_tokens: int
    n_failed: int
    n_parts_skipped: int
    n_parts: int


def render_source(
    source: TokenSource,
    out: Path,
    *,
    on_error: OnError = OnError.FAIL,
    workers: int = 1,
    progress: Progress = lambda _conversations, _tokens: None,
) -> RenderSummary:
    """Write the token dataset of `source` to `out`; parts that are there already are kept.

    Args:
        source: Planned conversations.
        out: Directory, new or of the same plan.
        on_error: What one bad conversation does.
        workers: Processes that write parts; few parts are written here. More than one need a picklable source
            and `if __name__ == "__main__":` in the script that calls this. The files do not depend on it.
        progress: Called after each conversation, with several workers after each part.

    Raises:
        UsageError: `out` holds another run.
        ConversationError: A conversation cannot be rendered and `on_error` is fail.
        InputError: Every conversation failed.
    """
    on_error = OnError(on_error)
    manifest = Manifest(
        kind=DatasetKind.TOKENS,
        tokscore_version=version("tokscore"),
        settings=source.settings,
        tokenizer=source.tokenizer,
        model=None,
        inputs=list(source.inputs),
        parts=list(source.parts),
    ).sealed()
    done = prepare_output(out, manifest, source.vocabulary)
    parts = [part for part in manifest.parts if part.index not in done]
    job = PartJob(source, out, manifest, on_error)
    n_workers = min(workers, len(parts) // PARTS_PER_WORKER)
    results = on_processes(job, n_workers, parts) if n_workers > 1 else _write_here(job, parts, progress)
    total = PartResult()
    with closing(results):
        for result in results:
            total = PartResult(
                total.n_conversations + result.n_conversations,
                total.n_tokens + result.n_tokens,
                total.n_failed + result.n_failed,
                total.first_failure or result.first_failure,
            )
            progress(total.n_conversations + total.n_failed, total.n_tokens)
    Dataset(out).check_some_succeeded("rendered")
    return RenderSummary(
        total.n_conversations, total.n_tokens, total.n_failed, len(done), len(manifest.parts)
    )


def _write_here(job: PartJob, parts: Sequence[Part], progress: Progress) -> Generator[PartResult]:
    n_conversations = n_tokens = 0

    def seen(n: int) -> None:
        nonlocal n_conversations, n_tokens
        n_conversations, n_tokens = n_conversations + 1, n_tokens + n
        progress(n_conversations, n_tokens)

    for part in parts:
        yield job.run(part, seen)
