"""Calls of a model that build on each other, as one tree of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tokscore.rendering.conversations.trace import NO_PARENT, Node

if TYPE_CHECKING:
    from tokscore.rendering.conversations.conversation import AnswerLogprobs
    from tokscore.rendering.conversations.trace import Usage

TOOLS_DIFFER_STATUS = "tools_differ"
_ASSISTANT = "assistant"


Tools = list[dict[str, Any]] | None  # Any: JSON values


class ModelCall(NamedTuple):
    """One request and its answer.

    Attributes:
        prompt: Messages of the request.
        answer: Messages that came back, mostly one; none where the call failed.
        usage: Tokens that the server reported, None without.
        logprobs: Of the tokens of the answer, None without any.
    """

    prompt: Sequence[Mapping[str, Any]]  # Any: JSON values
    answer: Sequence[Mapping[str, Any]]  # Any: JSON values
    usage: Usage | None = None
    logprobs: AnswerLogprobs | None = None


def message_tree(calls: Iterable[ModelCall]) -> list[Node]:
    """The messages of calls, those that their prompts have in common from the first on once.

    An answer that comes back in the prompt of a later call is the same node; one that comes back changed, as
    where its reasoning is left out, begins another branch. Equal answers were generated one by one, and stay
    nodes of their own.

    Args:
        calls: In the order in which they were made.
    """
    nodes: list[Node] = []
    children: dict[tuple[int, bytes], int] = {}

    def add(node: Node) -> int:
        nodes.append(node)
        children[node.parent, _key(node.messages[0])] = len(nodes) - 1
        return len(nodes) - 1

    for call in calls:
        at = NO_PARENT
        for message in call.prompt:
            known = children.get((at, _key(message)))
            at = add(Node(at, (message,))) if known is None else known
        for message in call.answer:
            is_sampled = message["role"] == _ASSISTANT
            usage, logprobs = (call.usage, call.logprobs) if is_sampled else (None, None)
            at = add(Node(at, (message,), is_sampled, usage=usage, logprobs=logprobs))
    return nodes


def first_tools(given: Iterable[Tools]) -> tuple[Tools, str | None]:
    """The first of the tools that the calls of a record had, with the status that says if others had others.

    Args:
        given: In the order of the calls, None for a call that had none.
    """
    found = list(given)
    first = next((each for each in found if each), None)
    return first, TOOLS_DIFFER_STATUS if any(each != first for each in found) else None


def _key(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(message, order="sorted")
