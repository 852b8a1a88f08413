"""What the tokens of a report are grouped by, beyond the columns of the token table."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.report.scored import ScoredConversation
from tokscore.dataset.tokens import run_starts

_ENTROPIES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0)
_POSITIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MESSAGES = (*range(10), 10, 20, 50, 100)
_NO_MESSAGE = "(no message)"
_UNKNOWN = "(unknown)"


class Grouping(StrEnum):
    """What tokens of one row share."""

    ROLE = "role"
    SOURCE = "source"
    POSITION = "position in message"
    MESSAGE = "message index"
    ENTROPY = "entropy (nats)"


class Groups(NamedTuple):
    """Tokens of one conversation by group.

    Attributes:
        codes: int64, shape [tokens], index into `labels`.
        labels: Label of each group with what sorts it: numbers first, those of no message last.
    """

    codes: NDArray[np.int64]
    labels: list[tuple[float, str]]


def groups_of(conversation: ScoredConversation, by: Grouping) -> Groups:
    """The group of every token."""
    message = conversation.message_indices.astype(np.int64)
    is_none = message < 0
    if by is Grouping.SOURCE:
        return Groups(conversation.source_codes, [(0.0, name) for name in conversation.sources])
    if by is Grouping.ROLE:
        roles = sorted({m.role for m in conversation.messages})
        of_message = np.array([roles.index(m.role) for m in conversation.messages] + [len(roles)])
        return Groups(of_message[message], [*((0.0, role) for role in roles), (np.inf, _NO_MESSAGE)])
    if by is Grouping.POSITION:
        return _buckets(
            conversation.positions_in_message.astype(np.float64), _POSITIONS, is_none, _NO_MESSAGE
        )
    if by is Grouping.MESSAGE:
        return _buckets(message.astype(np.float64), _MESSAGES, is_none, _NO_MESSAGE)
    entropies = conversation.teacher.entropies
    return _buckets(entropies, _ENTROPIES, np.isnan(entropies), _UNKNOWN)


def _buckets(values: FloatArray, edges: tuple[float, ...], is_other: NDArray[np.bool_], other: str) -> Groups:
    codes = np.where(is_other, len(edges), np.searchsorted(edges, values, side="right") - 1)
    whole = isinstance(edges[-1], int)
    labels = [
        (float(low), _label(low, high, whole)) for low, high in zip(edges, (*edges[1:], None), strict=True)
    ]
    return Groups(np.maximum(codes, 0), [*labels, (np.inf, other)])


def _label(low: float, high: float | None, whole: bool) -> str:
    if high is None:
        return f"{low:g} and more"
    if not whole:
        return f"{low:g} to {high:g}"
    return f"{low:g}" if high - low == 1 else f"{low:g} to {high - 1:g}"


def owner_runs(conversation: ScoredConversation) -> NDArray[np.int64]:
    """Starts of runs of tokens with one message, source and flags."""
    return run_starts(
        conversation.message_indices, conversation.source_codes, conversation.is_content, conversation.sampled
    )
