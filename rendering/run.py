"""The render run: conversations to a token dataset."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tokscore.rendering.dataset import Dataset, prepare_output
from tokscore.rendering.manifest import Manifest, Part
from tokscore.rendering.source import TokenSource
from tokscore.rendering.tables import DatasetKind
from tokscore.rendering.workers import PARTS_PER_WORKER, OnError, PartJob, PartResult, on_processes

__all__ = ["OnError", "Progress", "RenderSummary", "render"]


class RenderSummary(NamedTuple):
    """What a run did.

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


# Called after each conversation with (conversations done, tokens done).
Progress = Callable[[int, int], None]


def render(
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
