"""The tokens of a branch in one row, with the message of each as far as the nodes tell it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Node, joined_logprobs
from tokscore.rendering.recorded_ids.alignment import Windows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Joined(NamedTuple):
    """The tokens of a branch, node after node; every array has shape [tokens].

    Attributes:
        token_ids: int32.
        sampled_mask: int8.
        logprobs: float32, None without any.
        trainer_logprobs: Likewise.
        owners: int32, index of the token's message; -1 for none, and where `is_open`.
        is_open: bool, the node leaves the message open. Either it adds several messages, or it may also hold
            ids of a neighbouring message, or ids that the nodes before it lack; then the tokens before its
            first sampled one are open.
        windows: Range of messages that each token may belong to.
    """

    token_ids: NDArray[np.int32]
    sampled_mask: NDArray[np.int8]
    logprobs: NDArray[np.float32] | None
    trainer_logprobs: NDArray[np.float32] | None
    owners: NDArray[np.int32]
    is_open: NDArray[np.bool_]
    windows: Windows


def join(
    nodes: Sequence[Node], ends: Collection[int] = frozenset(), opens: Collection[int] = frozenset()
) -> Joined:
    """The tokens of all nodes, joined.

    Args:
        nodes: From root to leaf, each with tokens.
        ends: Indices of nodes that may begin with the end of the message before them.
        opens: Indices of nodes that may end with the header of the message behind them.
    """
    tokens = [node.tokens for node in nodes if node.tokens is not None]
    lengths = np.array([len(each.token_ids) for each in tokens])
    n_messages = np.array([len(node.messages) for node in nodes])
    first = np.cumsum(n_messages) - n_messages
    # Ids of a message whose own were not told apart lie in the next node that has any.
    last_with_ids = np.maximum.accumulate(np.where(lengths > 0, np.arange(len(lengths)), -1))
    before = np.append(-1, last_with_ids[:-1])
    low = np.where(before < 0, 0, (first + n_messages)[before])
    high = first + n_messages - 1
    # A node without messages behind one of several may hold some of those.
    holder = np.maximum.accumulate(np.where(n_messages > 0, np.arange(len(lengths)), 0))
    is_bare = (n_messages == 0) & (n_messages[holder] > 1)
    low = np.where(is_bare, low[holder], low)
    for i in ends:
        if not is_bare[i]:
            low[i] = max(int(first[i]) - 1, 0)
            high[i] = max(int(high[i]), int(first[i]))
    for i in opens:
        high[i] += not is_bare[i]
    owners, is_open = [], []
    for i, (each, start, count) in enumerate(zip(tokens, first.tolist(), n_messages.tolist(), strict=True)):
        n = len(each.token_ids)
        opened = np.zeros(n, bool)
        if each.message_indices is None and (count > 1 or is_bare[i] or i in ends or i in opens):
            opened[:] = True
        elif each.message_indices is None and count == 1 and low[i] < start:
            opened[: int(np.append(np.flatnonzero(each.sampled_mask == 1), n)[0])] = True
        own = np.full(n, start if count == 1 else NO_MESSAGE, np.int32)
        owners.append(
            np.where(opened, NO_MESSAGE, own).astype(np.int32)
            if each.message_indices is None
            else each.message_indices.astype(np.int32)
        )
        is_open.append(opened)
    windows = (np.repeat(column, lengths).astype(np.int32) for column in (np.arange(len(lengths)), low, high))
    return Joined(
        np.concatenate([each.token_ids for each in tokens]),
        np.concatenate([each.sampled_mask for each in tokens]),
        joined_logprobs([each.logprobs for each in tokens], lengths.tolist()),
        joined_logprobs([each.trainer_logprobs for each in tokens], lengths.tolist()),
        np.concatenate(owners),
        np.concatenate(is_open),
        Windows(*windows),
    )


@dataclass(frozen=True, slots=True)
class RecordedBranch:
    """One branch of a trace with the ids of all its nodes.

    Attributes:
        nodes: From root to leaf, each with tokens.
        conversation: Their messages.
        is_text: The messages are text that a template printed already.
    """

    nodes: Sequence[Node]
    conversation: Conversation
    is_text: bool = False
