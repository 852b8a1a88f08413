"""Records of text that was never a chat: tokenised as it is, without a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokscore.rendering.rendered import NO_MESSAGE
from tokscore.rendering.traces import NO_PARENT, Node, NodeTokens, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.tokenizer import ChatTokenizer


def tokenised(trace: Trace, tokenizer: ChatTokenizer) -> list[Node]:
    """The nodes with their ids, each tokenised by itself; the first opens as transformers opens a text.

    What the text opens with already, as where a template printed it, is not put before it again. Nothing is
    put behind a text, such as an EOS: whether a model saw one is not known.

    Args:
        trace: Of text.
        tokenizer: That makes the ids.
    """
    texts = ["".join(str(message.get("content") or "") for message in node.messages) for node in trace.nodes]
    opening = np.array(tokenizer.opening_ids, np.int32)
    nodes = []
    for node, ids in zip(trace.nodes, tokenizer.token_ids(texts), strict=True):
        tokens = NodeTokens(ids, np.full(len(ids), node.is_sampled, np.int8))
        if node.parent == NO_PARENT and not np.array_equal(ids[: len(opening)], opening):
            tokens = _opened(tokens, opening)
        nodes.append(node._replace(tokens=tokens))
    return nodes


def _opened(tokens: NodeTokens, opening: NDArray[np.int32]) -> NodeTokens:
    """The ids of a first message behind those that belong to none."""
    n = len(opening)
    return NodeTokens(
        np.append(opening, tokens.token_ids),
        np.append(np.zeros(n, np.int8), tokens.sampled_mask),
        message_indices=np.append(np.full(n, NO_MESSAGE), np.zeros_like(tokens.token_ids)).astype(np.int32),
    )
