"""The render run: conversations to a token dataset."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tokscore.rendering.dataset import Dataset, prepare_output
from tokscore.rendering.manifest import Manifest
from tokscore.rendering.parts import PartWriter
from tokscore.rendering.rendered import FailedConversation
from tokscore.rendering.source import TokenSource
from tokscore.rendering.tables import DatasetKind


class OnError(StrEnum):
    """What one bad conversation does to a run."""

    FAIL = "fail"  # ends it
    SKIP = "skip"  # is listed in errors/


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
    progress: Progress = lambda _conversations, _tokens: None,
) -> RenderSummary:
    """Write the token dataset of `source` to `out`; parts that are there already are kept.

    Args:
        source: Planned conversations.
        out: Directory, new or of the same plan.
        on_error: What one bad conversation does.
        progress: Called after each conversation.

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
    n_conversations = n_tokens = n_failed = 0
    for part in manifest.parts:
        if part.index in done:
            continue
        with PartWriter(out, manifest, part.index) as writer:
            for item in source.read(part):
                if isinstance(item, FailedConversation):
                    if on_error is OnError.FAIL:
                        raise item.error()
                    writer.fail(item)
                    n_failed += 1
                else:
                    writer.add(item)
                    n_conversations += 1
                    n_tokens += len(item.tokens)
                progress(n_conversations + n_failed, n_tokens)
            writer.finish()
    Dataset(out).check_some_succeeded("rendered")
    return RenderSummary(n_conversations, n_tokens, n_failed, len(done), len(manifest.parts))
