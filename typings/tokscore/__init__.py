"""Offline trajectory scoring and token analytics.

    from tokscore import Renderer, render, score, stats, diff

    tokens = render("conversations.jsonl", "MODEL")      # a token dataset, every token with its owner
    scores = score(tokens, "MODEL")                      # a score dataset, every token with its logprob
    stats(scores, by="role")                             # a polars frame
    diff(scores, score(tokens, "OTHER"))                 # how far two models are apart
    Renderer("MODEL").render({"messages": [...]})        # one conversation, as arrays

The rooms hold the rest: `tokscore.rendering` makes tokens, `tokscore.scoring` scores them, `tokscore.analytics`
answers questions about the scores, `tokscore.dataset` is the files between them, `tokscore.cli` the command.
Expected failures are a `TokscoreError`.
"""

from __future__ import annotations

from tokscore.dataset.interactive.lazy_names import lazy_names

# As in `typing`, which takes longer to import than all of the command before it can be interrupted.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokscore.analytics import diff, export, select, stats
    from tokscore.rendering import (
        ChatTokenizer,
        Dataset,
        RenderedTokens,
        Renderer,
        load_tokens,
        parse_conversation,
        render,
    )
    from tokscore.dataset.errors import TokscoreError
    from tokscore.scoring import load_scores, score

    __version__: str

_LAZY = {
    "ChatTokenizer": "tokscore.rendering",
    "Dataset": "tokscore.rendering",
    "RenderedTokens": "tokscore.rendering",
    "Renderer": "tokscore.rendering",
    "TokscoreError": "tokscore.dataset.errors",
    "diff": "tokscore.analytics",
    "export": "tokscore.analytics",
    "load_scores": "tokscore.scoring",
    "load_tokens": "tokscore.rendering",
    "parse_conversation": "tokscore.rendering",
    "render": "tokscore.rendering",
    "score": "tokscore.scoring",
    "select": "tokscore.analytics",
    "stats": "tokscore.analytics",
}

__all__ = [
    "ChatTokenizer",
    "Dataset",
    "RenderedTokens",
    "Renderer",
    "TokscoreError",
    "__version__",
    "diff",
    "export",
    "load_scores",
    "load_tokens",
    "parse_conversation",
    "render",
    "score",
    "select",
    "stats",
]

_find, __dir__ = lazy_names(__name__, _LAZY, [*__all__, "__doc__", "__name__", "__path__"])


def __getattr__(name: str) -> object:
    if name != "__version__":
        return _find(name)
    from importlib.metadata import version

    return version("tokscore")
