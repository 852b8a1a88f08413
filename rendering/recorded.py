"""Branches whose token ids were recorded: the ids stay as they are, the template only says what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.rendering.attribution import RunTable, run_table, token_owners
from tokscore.rendering.conversations import Conversation, has_media, tool_names
from tokscore.rendering.errors import ConversationError
from tokscore.rendering.origins import REASONING_FIELDS
from tokscore.rendering.rendered import (
    NO_MESSAGE,
    RECORDED_SOURCE,
    MessageFacts,
    MessageFlag,
    RenderedTokens,
)
from tokscore.rendering.tokenizer import Encoding
from tokscore.rendering.traces import Node, NodeTokens, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.renderer import Renderer
    from tokscore.rendering.tokenizer import ChatTokenizer

MEDIA_STATUS = "media"
UNALIGNED_STATUS = "unaligned"
TEXT_STATUS = "rendered_text"


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


class Recorded(NamedTuple):
    """A branch with its ids attributed.

    Attributes:
        tokens: The ids as recorded.
        status: What a reader should know, None if nothing.
    """

    tokens: RenderedTokens
    status: str | None


def branch_items(trace: Trace, tokenizer: ChatTokenizer) -> list[Conversation | RecordedBranch]:
    """Each branch of a trace: as a conversation to render where no ids are recorded, else with its ids.

    Raises:
        ConversationError: Only some nodes of a branch have ids.
    """
    nodes = _tokenised(trace, tokenizer) if trace.is_text else trace.nodes
    return [_branch_item(trace, [nodes[i] for i in path]) for path in trace.branches]


def _branch_item(trace: Trace, nodes: Sequence[Node]) -> Conversation | RecordedBranch:
    conversation = Conversation(
        messages=[message for node in nodes for message in node.messages],
        tools=trace.tools,
        template_kwargs=trace.template_kwargs,
        metadata=trace.metadata,
    )
    n_recorded = sum(node.tokens is not None for node in nodes)
    if not n_recorded:
        if not conversation.messages:
            raise ConversationError("has neither messages nor token ids.")
        return conversation
    if n_recorded < len(nodes):
        raise ConversationError(
            f"has ids on {n_recorded} of the {len(nodes)} nodes of a branch; expected all or none."
        )
    return RecordedBranch(nodes, conversation, trace.is_text)


def _tokenised(trace: Trace, tokenizer: ChatTokenizer) -> list[Node]:
    """The nodes of a text that a template printed already, each tokenised by itself."""
    texts = ["".join(str(message.get("content") or "") for message in node.messages) for node in trace.nodes]
    return [
        node._replace(tokens=NodeTokens(ids, np.full(len(ids), node.is_sampled, np.int8)))
        for node, ids in zip(trace.nodes, tokenizer.token_ids(texts), strict=True)
    ]


def attribute_recorded(branch: RecordedBranch, renderer: Renderer) -> Recorded:
    """The recorded ids of a branch with the owner of each.

    Which tokens were sampled is what the record says. Their messages are those of their nodes; fields,
    content, and the messages of nodes that add several, are read off the template's own rendering wherever it
    has the same text. Elsewhere the source is "recorded", and tokens of a node of several messages belong to
    none.

    Args:
        branch: With the tokens of all nodes.
        renderer: The template and its tokenizer.

    Raises:
        ConversationError: An id is none of the tokenizer's.
    """
    recorded = _join(branch.nodes)
    _check_ids(recorded.token_ids, renderer.tokenizer)
    messages = branch.conversation.messages
    is_control = renderer.tokenizer.flags(renderer.tokenizer.special_ids)[recorded.token_ids]
    owners, codes = recorded.owners.copy(), np.zeros(len(recorded.token_ids), np.int16)
    sources = [RECORDED_SOURCE]
    contents = [
        node.tokens.is_content
        for node in branch.nodes
        if node.tokens is not None and len(node.tokens.token_ids)
    ]
    recorded_contents = [each for each in contents if each is not None]
    has_contents = len(recorded_contents) == len(contents)
    recorded_is_content = np.concatenate(recorded_contents) if has_contents and contents else None
    is_content = ~is_control & (owners != NO_MESSAGE) if recorded_is_content is None else recorded_is_content
    is_content = is_content.copy()
    text = renderer.tokenizer.text_of(recorded.token_ids)
    unaligned = recorded.has_several & (owners == NO_MESSAGE)
    encoding = None if text is None else renderer.tokenizer.token_bytes.spans(text, recorded.token_ids)
    if text is not None and encoding is not None and not branch.is_text and has_texts(messages):
        found = _find_contents(branch.nodes, messages, text, Encoding(recorded.token_ids, *encoding))
        for each in found if recorded_is_content is None else ():
            has_calls = bool(messages[each.message].get("tool_calls"))  # which stand beside the content
            is_answer = recorded.sampled_mask[each.node] == 1
            is_content[each.node] &= has_calls & is_answer
        for each in found:
            is_content[each.start : each.stop] = True
            codes[each.start : each.stop] = _code(sources, each.field)
        aligned = _align(branch.conversation, renderer, text, Encoding(recorded.token_ids, *encoding))
        if aligned is not None:
            usable = aligned.is_aligned & _is_plausible(aligned.owners, recorded)
            owners[usable] = aligned.owners[usable]
            is_content[usable] = aligned.is_content[usable]
            own = np.array([_code(sources, source) for source in aligned.sources], np.int16)
            codes[usable] = own[aligned.source_codes[usable]]
            unaligned &= ~usable
    names = tool_names(messages)
    controlled = np.bincount(
        owners[is_control & is_content & (owners >= 0)], minlength=len(messages)
    ).tolist()
    facts = tuple(
        MessageFacts(
            str(message["role"]),
            name,
            flags=(
                *((MessageFlag.CONTROL_TOKENS,) if controlled[i] else ()),
                MessageFlag.RECORDED,
            ),
            unknown_reason=_NOT_RECORDED if (recorded.sampled_mask[owners == i] == -1).any() else None,
            n_control_tokens=controlled[i],
        )
        for i, (message, name) in enumerate(zip(messages, names, strict=True))
    )
    tokens = RenderedTokens(
        token_ids=recorded.token_ids,
        message_indices=owners,
        sampled_mask=recorded.sampled_mask,
        is_content=is_content,
        source_codes=codes,
        sources=tuple(sources),
        messages=facts,
        text=None if encoding is None else text,
        char_starts=None if encoding is None else encoding.starts,
        char_stops=None if encoding is None else encoding.stops,
        recorded_logprobs=recorded.logprobs,
        recorded_is_content=recorded_is_content,
    )
    statuses = [
        TEXT_STATUS if branch.is_text else None,
        UNALIGNED_STATUS if unaligned.any() else None,
        MEDIA_STATUS if has_media(messages) else None,
    ]
    return Recorded(tokens, ",".join(filter(None, statuses)) or None)


_NOT_RECORDED = "the record does not say which of its tokens were sampled"


class _Joined(NamedTuple):
    """The tokens of all nodes of a branch, each of shape [tokens].

    Attributes:
        token_ids: int32.
        sampled_mask: int8.
        logprobs: float32, None without any.
        owners: int32, message of each, -1 without, and where a node adds several.
        has_several: bool, the node adds several messages.
        low: int32, first message that may own the token.
        high: int32, last one.
    """

    token_ids: NDArray[np.int32]
    sampled_mask: NDArray[np.int8]
    logprobs: NDArray[np.float32] | None
    owners: NDArray[np.int32]
    has_several: NDArray[np.bool_]
    low: NDArray[np.int32]
    high: NDArray[np.int32]


def _join(nodes: Sequence[Node]) -> _Joined:
    tokens = [node.tokens for node in nodes if node.tokens is not None]
    lengths = np.array([len(each.token_ids) for each in tokens])
    n_messages = np.array([len(node.messages) for node in nodes])
    first = np.cumsum(n_messages) - n_messages
    # Ids of a message whose own were not told apart lie in the next node that has any.
    last_with_ids = np.maximum.accumulate(np.where(lengths > 0, np.arange(len(lengths)), -1))
    before = np.append(-1, last_with_ids[:-1])
    low = np.where(before < 0, 0, (first + n_messages)[before])
    owners = [
        np.full(n, start if count == 1 else NO_MESSAGE, np.int32)
        if each.message_indices is None
        else each.message_indices.astype(np.int32)
        for each, n, start, count in zip(tokens, lengths, first, n_messages, strict=True)
    ]
    logprobs = None
    if any(each.logprobs is not None for each in tokens):
        logprobs = np.concatenate(
            [
                np.full(len(each.token_ids), np.nan, np.float32) if each.logprobs is None else each.logprobs
                for each in tokens
            ]
        )
    return _Joined(
        np.concatenate([each.token_ids for each in tokens]),
        np.concatenate([each.sampled_mask for each in tokens]),
        logprobs,
        np.concatenate(owners),
        np.repeat(n_messages > 1, lengths),
        np.repeat(low, lengths).astype(np.int32),
        np.repeat(first + n_messages - 1, lengths).astype(np.int32),
    )


def joined_ids(nodes: Sequence[Node]) -> NDArray[np.int32]:
    """The recorded ids of a branch, int32, shape [tokens]."""
    return np.concatenate([node.tokens.token_ids for node in nodes if node.tokens is not None])


def _is_plausible(aligned: NDArray[np.int32], recorded: _Joined) -> NDArray[np.bool_]:
    """Whether the template's owner of a token can be meant: one of its node, the next answer, or nobody."""
    inside = (aligned >= recorded.low) & (aligned <= recorded.high + 1)
    plausible: NDArray[np.bool_] = inside | (aligned == NO_MESSAGE)
    return plausible


def _check_ids(token_ids: NDArray[np.int32], tokenizer: ChatTokenizer) -> None:
    n_ids = len(tokenizer.token_bytes.contents)
    if not len(token_ids):
        raise ConversationError("has no token ids at all.")
    if token_ids.max() >= n_ids:
        raise ConversationError(
            f"holds the token id {token_ids.max()}; {tokenizer.name} has 0 to {n_ids - 1}.",
            hint="Give the model whose tokenizer made the ids.",
        )


def has_texts(messages: Sequence[Mapping[str, Any]]) -> bool:  # Any: JSON values
    """Whether there are messages and each has more than a role."""
    return bool(messages) and all(set(message) - {"role", "name"} for message in messages)


def _code(sources: list[str], source: str) -> int:
    if source not in sources:
        sources.append(source)
    return sources.index(source)


class _Found(NamedTuple):
    """The tokens of a node that spell one field of its message, half-open."""

    message: int
    node: slice
    start: int
    stop: int
    field: str


def _find_contents(
    nodes: Sequence[Node],
    messages: Sequence[Mapping[str, Any]],  # Any: JSON values
    text: str,
    encoding: Encoding,
) -> list[_Found]:
    """Where nodes of one message hold the text of its fields word for word."""
    found, token, message = [], 0, 0
    for node in nodes:
        n_tokens = 0 if node.tokens is None else len(node.tokens.token_ids)
        if len(node.messages) == 1 and n_tokens:
            low = int(encoding.starts[token])
            high = int(encoding.stops[token + n_tokens - 1])
            for field in ("content", *REASONING_FIELDS):
                value = messages[message].get(field)
                at = text.find(value, low, high) if isinstance(value, str) and value else -1
                if at >= 0:
                    first = int(np.searchsorted(encoding.stops, at, side="right"))
                    last = int(np.searchsorted(encoding.starts, at + len(str(value))))
                    root = field if field == "content" else REASONING_FIELDS[0]
                    whole = slice(token, token + n_tokens)
                    found.append(_Found(message, whole, max(first, token), min(last, whole.stop), root))
        token += n_tokens
        message += len(node.messages)
    return found


class _Aligned(NamedTuple):
    """What the template's rendering says of each recorded token; arrays of shape [tokens]."""

    is_aligned: NDArray[np.bool_]
    owners: NDArray[np.int32]
    is_content: NDArray[np.bool_]
    source_codes: NDArray[np.int16]
    sources: tuple[str, ...]


def _align(conversation: Conversation, renderer: Renderer, text: str, encoding: Encoding) -> _Aligned | None:
    """The template's owners for the text that both have at the start and at the end."""
    if has_media(conversation.messages):
        return None
    try:
        printed = renderer.with_generation_prompt(False).print(conversation, 0)
    except ConversationError:
        return None  # the template refuses what was recorded under another
    runs: RunTable = run_table(printed.rendered.runs)
    theirs = printed.rendered.text
    n_start = common_prefix(text, theirs)
    n_end = common_suffix(text[n_start:], theirs[n_start:])
    moved = len(theirs) - len(text)
    at_start, at_end = encoding.stops <= n_start, encoding.starts >= len(text) - n_end
    is_aligned = (at_start | at_end) & (encoding.stops > encoding.starts)
    if not is_aligned.any():
        return None
    shift = np.where(at_start, 0, moved)
    last = max(len(theirs) - 1, 0)
    starts = np.where(is_aligned, encoding.starts + shift, last)
    stops = np.where(is_aligned, encoding.stops + shift, last)
    owners = token_owners(runs, Encoding(encoding.token_ids, starts, stops))
    return _Aligned(
        is_aligned, owners.message_indices, owners.is_content, owners.source_codes, tuple(runs.sources)
    )


def common_prefix(left: str, right: str) -> int:
    """Number of characters that two texts share at their start."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(left: str, right: str) -> int:
    """Number of characters that two texts share at their end."""
    return common_prefix(left[::-1], right[::-1])
