"""The headers of recorded answers: the template's text in front of an answer, before a model goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.recorded_ids.alignment import (
    PrintedText,
    common_prefix,
    print_messages,
    written_blocks,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.conversations.trace import Node
    from tokscore.rendering.recorded_ids.branch import RecordedBranch

_ASSISTANT = "assistant"
_ASKED = ({"role": "user", "content": "a"},)


class AnswerHeader(NamedTuple):
    """Text in front of an answer.

    Attributes:
        text: Not empty.
        sources: Field path root of each character.
    """

    text: str
    sources: tuple[str, ...]


class FoundHeader(NamedTuple):
    """The tokens of a header that was recorded, half-open, and the answer behind it.

    Attributes:
        message: The answer.
        start: First token.
        stop: First sampled token of the answer.
        sources: Field path root of each token.
    """

    message: int
    start: int
    stop: int
    sources: tuple[str, ...]


def find_headers(
    branch: RecordedBranch, renderer: Renderer, printed: PrintedText | None, token_ids: NDArray[np.int32]
) -> dict[int, FoundHeader]:
    """Which answers the recorded ids open right before their first sampled token as the template does.

    That is with the generation prompt, or with what the template prints in front of the body of some answer.

    Args:
        branch: With the tokens of all nodes.
        renderer: The template and its tokenizer.
        printed: The messages as it prints them, None where it does not.
        token_ids: Of the branch.

    Returns:
        By index of the node of the answer.
    """
    answers = list(_answers(branch.nodes))
    if not answers:
        return {}
    headers = [*_prompts(branch.conversation, renderer), *_headers(branch.conversation, printed)]
    headers.sort(key=lambda header: -len(header.text))
    found: dict[int, FoundHeader] = {}
    for node, message, low, stop in answers:
        ids = token_ids[low:stop]
        text = renderer.tokenizer.text_of(ids)
        spans = None if text is None else renderer.tokenizer.token_bytes.spans(text, ids)
        header = next((each for each in headers if text is not None and text.endswith(each.text)), None)
        if text is None or spans is None or header is None:
            continue
        at = len(text) - len(header.text)
        start = int(np.searchsorted(spans[0], at))  # a token that begins before it is not its own
        if start < len(ids):
            characters = (spans[0][start:] - at).tolist()
            found[node] = FoundHeader(
                message, low + start, stop, tuple(header.sources[i] for i in characters)
            )
    return found


def _answers(nodes: Sequence[Node]) -> Iterator[tuple[int, int, int, int]]:
    """Node, message, the token behind the sampled ones before, and the first sampled token of each answer."""
    token = message = low = 0
    for i, node in enumerate(nodes):
        mask = np.zeros(0, np.int8) if node.tokens is None else node.tokens.sampled_mask
        sampled = np.flatnonzero(mask == 1)
        if len(sampled):
            first, owners = (
                token + int(sampled[0]),
                None if node.tokens is None else node.tokens.message_indices,
            )
            if owners is None and [each["role"] for each in node.messages] == [_ASSISTANT]:
                yield i, message, low, first
            low = token + int(sampled[-1]) + 1
        token += len(mask)
        message += len(node.messages)


def _prompts(conversation: Conversation, renderer: Renderer) -> Iterator[AnswerHeader]:
    """The generation prompt behind a question."""
    asked = Conversation(list(_ASKED), template_kwargs=conversation.template_kwargs)
    without, prompted = print_messages(asked, renderer), print_messages(asked, renderer, prompt=True)
    if without is None or prompted is None:
        return
    n = common_prefix(without.text, prompted.text)
    if n < len(prompted.text):
        yield _header(prompted, n, len(prompted.text))


def _headers(conversation: Conversation, printed: PrintedText | None) -> Iterator[AnswerHeader]:
    """The template's text in front of the body of each answer."""
    if printed is None:
        return
    runs = printed.runs
    seen: set[int] = set()
    for start, stop, message in written_blocks(runs, 0, len(printed.text)):
        if message in seen or conversation.messages[message]["role"] != _ASSISTANT:
            continue
        seen.add(message)
        inside = runs.is_body & (runs.starts >= start) & (runs.starts < stop)
        body = int(runs.starts[inside][0]) if inside.any() else start
        if start < body:
            yield _header(printed, start, body)


def _header(printed: PrintedText, start: int, stop: int) -> AnswerHeader:
    codes = printed.runs.source_codes[printed.runs.at(np.arange(start, stop))]
    return AnswerHeader(
        printed.text[start:stop], tuple(printed.runs.sources[code] for code in codes.tolist())
    )


def unsure_nodes(
    nodes: Sequence[Node], with_header: Collection[int], is_control: NDArray[np.bool_]
) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that may hold tokens of an answer beside them, by the mask alone.

    Args:
        nodes: Of one branch, each with tokens.
        with_header: The answers whose headers are known.
        is_control: Whether each token of the branch is a control token.

    Returns:
        Those that may begin with the end of the answer before them, which was cut off by the mask, and those
        that may end with the header of the answer behind them.
    """
    holding = [i for i, node in enumerate(nodes) if node.tokens is not None and len(node.tokens.token_ids)]
    stops = np.cumsum([len(node.tokens.token_ids) for node in nodes if node.tokens is not None]).tolist()
    ends, opens = set(), set()
    for at, i in enumerate(holding):
        tokens = nodes[i].tokens
        if tokens is None or tokens.message_indices is not None or (tokens.sampled_mask == 1).any():
            continue
        if at and tokens.is_by_mask:
            before = nodes[holding[at - 1]].tokens
            if (
                before is not None
                and before.sampled_mask[-1] == 1
                and not is_control[stops[i] - len(tokens.token_ids) - 1]
            ):
                ends.add(i)
        if at + 1 < len(holding) and holding[at + 1] not in with_header:
            behind = nodes[holding[at + 1]].tokens
            if behind is not None and behind.sampled_mask[0] == 1 and nodes[i].messages:
                opens.add(i)
    return frozenset(ends), frozenset(opens)


def is_confirmed(
    nodes: Sequence[Node],
    with_header: Collection[int],
    is_control: NDArray[np.bool_],
    tokenizer: ChatTokenizer,
) -> bool:
    """Whether the text bears out what the mask alone says of which sampled tokens are of which answer.

    A single run of them is of the single answer. Of several each has a header, or each holds the words of
    its answer and, but for the last, a stop at its end.

    Args:
        nodes: Of one branch, each with tokens.
        with_header: The answers whose headers are known.
        is_control: Whether each token of the branch is a control token.
        tokenizer: Of the ids.
    """
    turns: list[tuple[int, bool]] = []  # node of each run, and whether its words and its stop say the same
    is_by_mask, stop = False, 0
    for i, node in enumerate(nodes):
        tokens = node.tokens
        if tokens is None:
            continue
        is_by_mask |= tokens.is_by_mask
        stop += len(tokens.token_ids)
        if (tokens.sampled_mask == 1).any():
            words = node.messages[0].get("content") if len(node.messages) == 1 else None
            text = tokenizer.text_of(tokens.token_ids) or ""
            holds = isinstance(words, str) and bool(words.strip()) and words.strip() in text
            turns.append((i, holds and (stop == len(is_control) or bool(is_control[stop - 1]))))
    if not is_by_mask or len(turns) <= 1:
        return True
    return all(i in with_header for i, _ in turns) or all(ends for _, ends in turns)


def gathered(nodes: Sequence[Node]) -> list[Node]:
    """The same ids, of which any may be of any message: the first node has all messages."""
    messages = tuple(message for node in nodes for message in node.messages)
    return [node._replace(messages=messages if i == 0 else ()) for i, node in enumerate(nodes)]
