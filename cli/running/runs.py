"""Steps of all commands that write a dataset: opening the input, and saying what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.failures import note_failures
from tokscore.cli.printing.message_notes import note_control_tokens, note_roles
from tokscore.cli.printing.tables import agreeing, counted

if TYPE_CHECKING:
    from tokscore.dataset.reading import Dataset
    from tokscore.dataset.tokens import FailedConversation
    from tokscore.rendering.attribution.settings import RenderSettings
    from tokscore.rendering.source import ConversationSource, DatasetSource
    from tokscore.scoring.engines.settings import EngineSettings


def open_conversations(
    inputs: list[str], model: str, settings: RenderSettings, out: Path | None, *, allow_dataset: bool
) -> ConversationSource | DatasetSource:
    """The token source for the arguments of render and logprobs.

    Raises:
        UsageError: Options that do not fit the inputs or are no JSON.
        InputError: An input, the tokenizer or the template cannot be used.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.rendering.inputs import open_source, warnings_about
    from tokscore.rendering.source import ConversationSource

    source = open_source(inputs, model, settings, out=out)
    if not allow_dataset and not isinstance(source, ConversationSource):
        raise UsageError(f"{inputs[0]} is a dataset already; expected files of conversations.")
    for line in warnings_about(source):
        note(line)
    return source


def open_tokens(tokens: Path, model: str, *, trust_remote_code: bool) -> DatasetSource:
    """A token dataset for one of two models that are compared.

    Raises:
        InputError: The model has another tokenizer.
    """
    from tokscore.dataset.errors import InputError, OtherTokenizerError
    from tokscore.rendering.libraries.remembered import cache_directory
    from tokscore.rendering.source import DatasetSource

    try:
        return DatasetSource(tokens, model=model, trust_remote_code=trust_remote_code)
    except OtherTokenizerError as error:
        if not tokens.is_relative_to(cache_directory()):
            raise
        raise InputError(
            f"{error.made_by} and {error.model} have two tokenizers: {error.difference}. Expected models "
            "that read the same token ids.\nScore the conversations with each (tokscore logprobs), and "
            "compare the text of both scores: tokscore diff --align text."
        ) from error


def served_model(engine: EngineSettings, rendering: RenderSettings) -> str:
    """The model that a server says that it has, of which the tokenizer is here; said to the user.

    Raises:
        UsageError: There is no server, or nothing that it names can be loaded here.
    """
    from tokscore.scoring.engines.server.tokenizer import served_tokenizer

    model = served_tokenizer(engine, rendering.revision, trust_remote_code=rendering.trust_remote_code)
    note(f"the server has {model}, whose tokenizer is taken.")
    return model


def use_scratch(folder: Path | None) -> None:
    """Have temporary files of this process, and of those that it starts, lie in a folder.

    Raises:
        UsageError: It is no directory of this machine.
    """
    import os
    import tempfile

    from tokscore.dataset.errors import UsageError

    if folder is None:
        return
    if not folder.is_dir():
        raise UsageError(f"`scratch` is {folder}, which is no directory of this machine; expected one.")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder.resolve())


def note_statuses(dataset: Dataset) -> None:
    """Say what was done to conversations that are not as they came."""
    from tokscore.analytics.groups.dataset_notes import status_counts
    from tokscore.rendering.documents.windows import TAIL_LEFT_OUT_STATUS

    note_windows(dataset)
    for status, n in status_counts(dataset).items():
        if status == TAIL_LEFT_OUT_STATUS:
            continue
        note(f"{counted(n, 'conversation')} with the status {status} (see status in docs/columns.md).")


def note_conversations(source: ConversationSource | DatasetSource, dataset: Dataset) -> None:
    """Say of scores what `render` says of tokens, where no other command has said it."""
    from tokscore.analytics.groups.dataset_notes import role_counts
    from tokscore.rendering.source import ConversationSource

    if not isinstance(source, ConversationSource):
        note_windows(dataset)
        return
    note_statuses(dataset)
    note_control_tokens(dataset)
    note_roles(dataset, role_counts(dataset), source.renderer.templates())


def note_windows(dataset: Dataset) -> None:
    """Say into how many windows texts were cut, and how many of their tokens count."""
    from tokscore.analytics.groups.dataset_notes import window_counts

    found = window_counts(dataset)
    if found is None:
        return
    settings = dataset.manifest.settings
    asked = ", ".join(f"{name} {settings[name]:,}" for name in ("stride", "context") if name in settings)
    note(
        f"{counted(found.n_texts, 'text')} in {counted(found.n_windows, 'chunk')} of {settings['chunk']:,} "
        f"tokens{f' ({asked})' if asked else ''}: {found.n_counted:,} of {counted(found.n_tokens, 'token')} "
        "count."
    )
    if found.n_left_out:
        note(
            f"--context leaves out the last tokens of {counted(found.n_left_out, 'text')}: they fill no "
            "chunk."
        )


def note_outcome(out: Path, n_parts_skipped: int, n_parts: int) -> None:
    """Say what was left to do, and what failed in the parts that are there, for which reasons.

    Args:
        out: The dataset.
        n_parts_skipped: Parts that were done before.
        n_parts: All parts.
    """
    from tokscore.rendering.failure_reasons import failure_reasons

    if n_parts_skipped == n_parts:
        note(f"{out} was complete already, there was nothing to do.")
    elif n_parts_skipped:
        were = agreeing(n_parts_skipped, "was", "were")
        note(f"{n_parts_skipped:,} of {counted(n_parts, 'part')} {were} done already.")
    reasons = failure_reasons(_failures(out))
    if reasons:
        n_failed = sum(each.n for each in reasons)
        note(f"{counted(n_failed, 'conversation')} failed, listed in {out / 'errors'}.")
        note_failures(reasons)


def _failures(out: Path) -> Iterator[FailedConversation]:
    """The error rows of the parts of a dataset that are there."""
    from tokscore.dataset.manifest import read_manifest
    from tokscore.dataset.reading import read_failures
    from tokscore.dataset.resuming import finished_parts

    manifest = read_manifest(out)
    for part in sorted(finished_parts(out, manifest)):
        yield from read_failures(out, part)
