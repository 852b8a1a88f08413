"""Steps of recorded token ids as a tree, in which prompts share what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokscore.rendering.conversations.trace import NO_PARENT, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray


class IdTree:
    """Nodes by the ids they add.

    Attributes:
        nodes: In the order in which they were added.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._children: dict[int, list[int]] = {}

    def add(self, node: Node) -> int:
        """The index of a new node, which has ids."""
        self.nodes.append(node)
        self._children.setdefault(node.parent, []).append(len(self.nodes) - 1)
        return len(self.nodes) - 1

    def longest_prefix(self, token_ids: NDArray[np.int32]) -> tuple[int, int]:
        """The last of the nodes from a root on that hold the first of these ids, and how many they hold."""
        best, n_best = NO_PARENT, 0
        found = [(NO_PARENT, 0)]
        while found:
            at, n_ids = found.pop()
            if n_ids > n_best:
                best, n_best = at, n_ids
            for child in self._children.get(at, ()):
                tokens = self.nodes[child].tokens
                assert tokens is not None
                stop = n_ids + len(tokens.token_ids)
                if stop > n_ids and np.array_equal(tokens.token_ids, token_ids[n_ids:stop]):
                    found.append((child, stop))
        return best, n_best

    def n_messages(self, node: int) -> int:
        """Messages from the root to a node."""
        n = 0
        while node != NO_PARENT:
            n += len(self.nodes[node].messages)
            node = self.nodes[node].parent
        return n
