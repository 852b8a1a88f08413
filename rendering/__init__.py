"""Conversations to attributed tokens."""

from tokscore.rendering.errors import (
    ConversationError,
    EngineError,
    InputError,
    TokscoreError,
    UsageError,
)

__all__ = ["ConversationError", "EngineError", "InputError", "TokscoreError", "UsageError"]
