"""Conversations to attributed tokens.

`render` makes a token dataset of conversations, `load_tokens` a frame of a dataset. `Renderer` renders single
conversations, `continue_with` appends turns to one that is rendered.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tokscore.rendering.errors import (
    ConversationError,
    EngineError,
    InputError,
    TokscoreError,
    UsageError,
)

if TYPE_CHECKING:
    from tokscore.rendering.answers import add_answer
    from tokscore.rendering.concatenation import concatenate_slices, pack_conversations
    from tokscore.rendering.continuation import Continuation, NotContinued, continue_with
    from tokscore.rendering.conversations import Conversation, parse_conversation
    from tokscore.rendering.dataset import Dataset
    from tokscore.rendering.frames import load_table, load_tokens
    from tokscore.rendering.interface import render
    from tokscore.rendering.rendered import RenderedTokens
    from tokscore.rendering.renderer import Renderer
    from tokscore.rendering.source import open_source
    from tokscore.rendering.tokenizer import ChatTokenizer

# Loaded when first asked for: they import pyarrow or jinja2, which `tokscore --help` does not need.
_LAZY = {
    "ChatTokenizer": "tokenizer",
    "Continuation": "continuation",
    "Conversation": "conversations",
    "Dataset": "dataset",
    "NotContinued": "continuation",
    "RenderedTokens": "rendered",
    "Renderer": "renderer",
    "add_answer": "answers",
    "concatenate_slices": "concatenation",
    "continue_with": "continuation",
    "load_table": "frames",
    "load_tokens": "frames",
    "open_source": "source",
    "pack_conversations": "concatenation",
    "parse_conversation": "conversations",
    "render": "interface",
}

__all__ = [
    "ChatTokenizer",
    "Continuation",
    "Conversation",
    "ConversationError",
    "Dataset",
    "EngineError",
    "InputError",
    "NotContinued",
    "RenderedTokens",
    "Renderer",
    "TokscoreError",
    "UsageError",
    "add_answer",
    "concatenate_slices",
    "continue_with",
    "load_table",
    "load_tokens",
    "open_source",
    "pack_conversations",
    "parse_conversation",
    "render",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
