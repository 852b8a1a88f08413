"""Branches of recorded ids divided into nodes by which of them were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokscore.dataset.tokens import run_spans
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens

_ASSISTANT = "assistant"


def mask_nodes(tokens: NodeTokens, messages: Sequence[Mapping[str, Any]] | None) -> list[Node]:  # Any: JSON
    """Nodes of one branch whose owners are not recorded, one a contiguous run of the mask.

    Args:
        tokens: All ids of the branch, at least one.
        messages: What was said, None where it is not recorded: sampled runs get the role alone then. They are
            given to the runs where as many are of the assistant as there are sampled runs; otherwise the
            first node has them all, so that the template's rendering tells whose the ids are.

    Returns:
        Nodes in a row, the first a root; sampled runs are turns.
    """
    spans = run_spans(tokens.sampled_mask).tolist()
    is_sampled = [bool(tokens.sampled_mask[start] == 1) for start, _ in spans]
    if messages:
        shares = share_messages(messages, is_sampled) or unshared(messages, len(spans))
    else:
        shares = [Share(({"role": _ASSISTANT},) if each else (), i) for i, each in enumerate(is_sampled)]
    tokens = tokens._replace(is_by_mask=bool(messages))
    nodes: list[Node] = []
    at = 0
    for share in shares:
        start, at = (at, at) if share.step is None else spans[share.step]
        sampled = share.step is not None and is_sampled[share.step]
        nodes.append(Node(len(nodes) - 1, share.messages, sampled, tokens.cut(start, at)))
    return nodes


class Share(NamedTuple):
    """Messages in a row.

    Attributes:
        messages: Possibly none.
        step: The step of the branch that they belong to, None for messages without a step.
    """

    messages: tuple[Mapping[str, Any], ...]  # Any: JSON values
    step: int | None


def share_messages(
    messages: Sequence[Mapping[str, Any]], is_sampled: Sequence[bool]
) -> list[Share] | None:  # Any: JSON values
    """Which messages belong to which of the steps of a branch, None where it cannot be told.

    A sampled step has one message of the assistant; a step right before it has those in between, the last
    step those that are left.

    Args:
        messages: Of the branch.
        is_sampled: Whether a model generated each step.

    Returns:
        Every message and every step once, in order.
    """
    turns = [i for i, message in enumerate(messages) if message["role"] == _ASSISTANT]
    if len(turns) != sum(is_sampled):
        return None
    turns.append(len(messages))
    shares: list[Share] = []
    first, n_turns = 0, 0
    for step, sampled in enumerate(is_sampled):
        turn = turns[n_turns]
        if sampled:
            if first < turn:
                shares.append(Share(tuple(messages[first:turn]), None))
            shares.append(Share((messages[turn],), step))
            first, n_turns = turn + 1, n_turns + 1
        elif step + 1 == len(is_sampled) or is_sampled[step + 1]:
            shares.append(Share(tuple(messages[first:turn]), step))
            first = turn
        else:
            shares.append(Share((), step))
    if first < len(messages):
        shares.append(Share(tuple(messages[first:]), None))
    return shares


def unshared(messages: Sequence[Mapping[str, Any]], n_steps: int) -> list[Share]:  # Any: JSON values
    """All messages for the first of the steps, of which it cannot be told whose they are."""
    return [Share(tuple(messages) if step == 0 else (), step) for step in range(n_steps)]


def shifted(nodes: Sequence[Node], n_before: int) -> list[Node]:
    """The same nodes as they are behind others, with which they share nothing."""
    return [
        node if node.parent == NO_PARENT else node._replace(parent=node.parent + n_before) for node in nodes
    ]
