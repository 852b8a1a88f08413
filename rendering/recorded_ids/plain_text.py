"""Records of text that was never a chat: tokenised as it is, without a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.attribution.tokenizer import ChatTokenizer


def tokenised(trace: Trace, tokenizer: ChatTokenizer) -> list[Node]:
    """The nodes with their ids, each tokenised by itself; the first text opens as transformers opens one.

    That of a branch whose prompt is empty is its completion. What the text opens with already, as where a
    template printed it, is not put before it again. Nothing is
    put behind a text, such as an EOS: whether a model saw one is not known.

    Args:
        trace: Of text.
        tokenizer: That makes the ids.
    """
    texts = ["".join(str(message.get("content") or "") for message in node.messages) for node in trace.nodes]
    opening = np.array(tokenizer.opening_ids, np.int32)
    leaves = {path[-1] for path in trace.branches}
    nodes: list[Node] = []
    empty = {
        NO_PARENT: 0
    }  # the nodes before which, and in which, no branch has text; and their messages so far
    for i, (node, ids) in enumerate(zip(trace.nodes, tokenizer.token_ids(texts), strict=True)):
        tokens = NodeTokens(ids, np.full(len(ids), node.is_sampled, np.int8))
        if node.parent in empty:
            message = empty[node.parent]
            if not len(ids) and i not in leaves:
                empty[i] = message + len(node.messages)
            elif not np.array_equal(ids[: len(opening)], opening):
                tokens = _opened(tokens, opening, message)
        nodes.append(node._replace(tokens=tokens))
    return nodes


def _opened(tokens: NodeTokens, opening: NDArray[np.int32], message: int) -> NodeTokens:
    """The ids of a message behind those that belong to none."""
    n = len(opening)
    owners = np.append(np.full(n, NO_MESSAGE), np.full(len(tokens.token_ids), message))
    return NodeTokens(
        np.append(opening, tokens.token_ids),
        np.append(np.zeros(n, np.int8), tokens.sampled_mask),
        message_indices=owners.astype(np.int32),
    )
