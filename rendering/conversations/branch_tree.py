"""Branches with equal beginnings as one tree, in which every branch keeps an end of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.tokens import run_starts
from tokscore.rendering.conversations.prefix_tree import share
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace, joined_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_TOKENS = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))
_Messages = Sequence[Mapping[str, Any]]  # Any: JSON values


class WholeBranch(NamedTuple):
    """One branch from its first token to its last.

    Attributes:
        token_ids: int32, shape [tokens].
        sampled_mask: int8, likewise.
        owners: int32, which of `messages` each token belongs to, -1 for none.
        messages: What was said.
        turn_stops: One past the last token of every generated message.
        is_by_mask: The owners were told from which tokens were sampled.
        logprobs: float32 in nats, NaN where none was recorded; shape [tokens]. None without any.
        trainer_logprobs: Those that a trainer computed later, likewise.
    """

    token_ids: NDArray[np.int32]
    sampled_mask: NDArray[np.int8]
    owners: NDArray[np.int32]
    messages: Sequence[_Messages]
    turn_stops: frozenset[int]
    is_by_mask: bool = False
    logprobs: NDArray[np.float32] | None = None
    trainer_logprobs: NDArray[np.float32] | None = None


def branch_tree(branches: Sequence[WholeBranch]) -> Trace:
    """The branches of one trajectory as a tree, equal beginnings once.

    What a branch shares with earlier ones, by its ids from the first on, belongs to the earliest of them,
    whose mask, messages and logprobs it has. A turn in the middle of several branches is one turn; one that
    ends a branch is its own, since equal samples were generated one by one. Of several branches each ends in
    a node of its own without ids.

    Args:
        branches: In the order in which they were made.
    """
    shared = share([branch.token_ids for branch in branches])
    is_single = len(branches) == 1
    ends: dict[int, int] = {}  # the last node of each segment that is in the tree
    turns: set[int] = set()  # the segments that end in a turn which goes on behind them
    nodes: list[Node] = []
    for i, branch in enumerate(branches):
        length = len(branch.token_ids)
        parent = NO_PARENT
        path = shared.segments_of(i)
        for segment, behind in zip_longest(path, path[1:]):
            first, last = int(shared.starts[segment]), int(shared.stops[segment])
            is_turn = last in branch.turn_stops and (is_single or last < length)
            if segment not in ends:
                starts = (first + run_starts(branch.owners[first:last])).tolist()
                for start, stop in zip(starts, [*starts[1:], last], strict=True):
                    owner = int(branch.owners[start])
                    others = branch.trainer_logprobs
                    tokens = NodeTokens(
                        branch.token_ids[start:stop],
                        branch.sampled_mask[start:stop],
                        logprobs=None if branch.logprobs is None else branch.logprobs[start:stop],
                        is_by_mask=branch.is_by_mask,
                        trainer_logprobs=None if others is None else others[start:stop],
                    )
                    said = () if owner < 0 else branch.messages[owner]
                    nodes.append(
                        Node(parent, said, is_turn if stop == last else stop in branch.turn_stops, tokens)
                    )
                    parent = len(nodes) - 1
                ends[segment] = parent
            elif is_turn and segment not in turns and behind not in ends:
                nodes.append(Node(ends[segment], (), True, _NO_TOKENS))
                ends[segment] = len(nodes) - 1
            if is_turn:
                turns.add(segment)
            parent = ends[segment]
        if not is_single:
            nodes.append(Node(parent, (), length in branch.turn_stops, _NO_TOKENS))
    return Trace(nodes)


def merged(trace: Trace) -> Trace:
    """The same trajectory with the ids that its branches have in common from their first on as one.

    Formats that list whole branches repeat them. Only nodes in which something was generated stay turns.
    Nodes put together anew have ids, mask, logprobs and messages; what else was recorded is left out.
    Trajectories with reported usage instead of ids stay as they are, as do trees whose nodes share nothing.
    """
    if any(node.tokens is None for node in trace.nodes):
        return trace
    nodes = [
        node._replace(is_sampled=False) if node.is_sampled and not _has_sampled(node) else node
        for node in trace.nodes
    ]
    trace = replace(trace, nodes=nodes)
    if trace.is_linear or not _repeats_ids(nodes):
        return trace
    whole = branch_tree([_whole([nodes[i] for i in path]) for path in trace.branches])
    return replace(trace, nodes=whole.nodes)


def _has_sampled(node: Node) -> bool:
    return node.tokens is not None and bool((node.tokens.sampled_mask != 0).any())


def _repeats_ids(nodes: Sequence[Node]) -> bool:
    """Whether two nodes go on alike behind the same ids."""
    ends: list[int] = []  # the last node with ids on the way to each
    known: set[tuple[int, int]] = set()
    for i, node in enumerate(nodes):
        before = NO_PARENT if node.parent == NO_PARENT else ends[node.parent]
        if node.tokens is None or not len(node.tokens.token_ids):
            ends.append(before)
            continue
        key = before, int(node.tokens.token_ids[0])
        if key in known:
            return True
        known.add(key)
        ends.append(i)
    return False


def _whole(nodes: Sequence[Node]) -> WholeBranch:
    tokens = [node.tokens for node in nodes if node.tokens is not None]
    lengths = [len(each.token_ids) for each in tokens]
    stops = np.cumsum(lengths).tolist()
    return WholeBranch(
        np.concatenate([each.token_ids for each in tokens]),
        np.concatenate([each.sampled_mask for each in tokens]),
        np.repeat(np.arange(len(nodes), dtype=np.int32), lengths),
        [node.messages for node in nodes],
        frozenset(stop for stop, node in zip(stops, nodes, strict=True) if node.is_sampled),
        any(each.is_by_mask for each in tokens),
        joined_logprobs([each.logprobs for each in tokens], lengths),
        joined_logprobs([each.trainer_logprobs for each in tokens], lengths),
    )
