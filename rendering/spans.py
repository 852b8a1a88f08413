"""Runs of tokens and counts per message, from per-token arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.rendered import RenderedTokens


class Span(NamedTuple):
    """A half-open stretch of tokens, characters or bytes."""

    start: int
    stop: int


class OwnedSpan(NamedTuple):
    """A half-open run of tokens of one owner.

    Attributes:
        start: First token.
        stop: One past the last.
        message_index: Its message, -1 for tokens of none.
        role: Role of that message, None at -1.
    """

    start: int
    stop: int
    message_index: int
    role: str | None


class RoleStart(NamedTuple):
    """Where a message begins.

    Attributes:
        token: Its first token.
        message_index: The message.
        role: Its role.
    """

    token: int
    message_index: int
    role: str


def run_starts(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Positions at which any of the columns changes; the first is 0.

    Args:
        columns: One-dimensional arrays of one length.

    Returns:
        Ascending int64 positions; empty for empty columns.
    """
    n = len(columns[0])
    if n == 0:
        return np.zeros(0, np.int64)
    changed = np.zeros(n, bool)
    changed[0] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def run_spans(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Half-open runs in which no column changes, shape [runs, 2]; they tile the positions."""
    starts = run_starts(*columns)
    stops = np.append(starts[1:], len(columns[0])) if len(starts) else starts
    return np.stack([starts, stops], axis=1)


class MessageCounts(NamedTuple):
    """Per message, each of shape [messages].

    Attributes:
        start: First token, -1 without tokens.
        stop: One past the last token, -1 without tokens.
        n_tokens: Tokens between them that belong to the message.
        n_sampled: Of these, generated ones; -1 where that cannot be told.
        n_content: Of these, with some character of a message body.
    """

    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    n_tokens: NDArray[np.int32]
    n_sampled: NDArray[np.int32]
    n_content: NDArray[np.int32]


def message_counts(tokens: RenderedTokens) -> MessageCounts:
    """Outer span and counts of every message."""
    n_messages = len(tokens.messages)
    owned = tokens.message_indices >= 0
    owner = tokens.message_indices[owned]
    positions = np.flatnonzero(owned)

    def count(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
        return np.bincount(owner[flags[owned]], minlength=n_messages).astype(np.int32)

    start = np.full(n_messages, -1, np.int32)
    stop = np.full(n_messages, -1, np.int32)
    start[owner[::-1]] = positions[::-1]
    stop[owner] = positions + 1
    n_sampled = count(tokens.sampled_mask == 1)
    n_sampled[count(tokens.sampled_mask == -1) > 0] = -1
    return MessageCounts(start, stop, count(np.ones(len(tokens), bool)), n_sampled, count(tokens.is_content))
