"""Conversations to attributed tokens.

In: conversations and trajectories as others wrote them. Out: token ids, each with message, role and field.
Must not know: engines, scores, or what is computed from them.

`render` makes a token dataset of conversations, `load_tokens` a frame of a dataset. `Renderer` renders single
conversations, `continue_with` appends turns to one that is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.dataset.errors import ConversationError, EngineError, InputError, TokscoreError, UsageError
from tokscore.dataset.interactive.lazy_names import lazy_names

if TYPE_CHECKING:
    from tokscore.dataset.frames import load_table, load_tokens
    from tokscore.dataset.reading import Dataset
    from tokscore.dataset.tokens import RenderedTokens
    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.attribution.settings import RenderSettings
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.conversations.conversation import Conversation, parse_conversation
    from tokscore.rendering.incremental.answers import add_answer
    from tokscore.rendering.incremental.continuation import Continuation, NotContinued, continue_with
    from tokscore.rendering.incremental.media import expand_placeholders
    from tokscore.rendering.incremental.packing import concatenate_slices, pack_conversations
    from tokscore.rendering.inputs import open_source
    from tokscore.rendering.run import render

# Loaded when first asked for: they import pyarrow or jinja2, which `tokscore --help` does not need.
_LAZY = {
    "ChatTokenizer": "tokscore.rendering.attribution.tokenizer",
    "Continuation": "tokscore.rendering.incremental.continuation",
    "Conversation": "tokscore.rendering.conversations.conversation",
    "Dataset": "tokscore.dataset.reading",
    "NotContinued": "tokscore.rendering.incremental.continuation",
    "RenderSettings": "tokscore.rendering.attribution.settings",
    "RenderedTokens": "tokscore.dataset.tokens",
    "Renderer": "tokscore.rendering.attribution.renderer",
    "add_answer": "tokscore.rendering.incremental.answers",
    "concatenate_slices": "tokscore.rendering.incremental.packing",
    "continue_with": "tokscore.rendering.incremental.continuation",
    "expand_placeholders": "tokscore.rendering.incremental.media",
    "load_table": "tokscore.dataset.frames",
    "load_tokens": "tokscore.dataset.frames",
    "open_source": "tokscore.rendering.inputs",
    "pack_conversations": "tokscore.rendering.incremental.packing",
    "parse_conversation": "tokscore.rendering.conversations.conversation",
    "render": "tokscore.rendering.run",
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
    "RenderSettings",
    "RenderedTokens",
    "Renderer",
    "TokscoreError",
    "UsageError",
    "add_answer",
    "concatenate_slices",
    "continue_with",
    "expand_placeholders",
    "load_table",
    "load_tokens",
    "open_source",
    "pack_conversations",
    "parse_conversation",
    "render",
]


__getattr__, __dir__ = lazy_names(__name__, _LAZY, __all__)
