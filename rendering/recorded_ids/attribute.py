"""Branches whose token ids were recorded: the ids stay as they are, the template only says what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import NO_MESSAGE, RECORDED_SOURCE, MessageFacts, MessageFlag, RenderedTokens
from tokscore.rendering.attribution.tokenizer import Encoding
from tokscore.rendering.conversations.conversation import Conversation, has_media, tool_names
from tokscore.rendering.conversations.trace import Node, Trace
from tokscore.rendering.recorded_ids.alignment import (
    Aligned,
    PrintedText,
    Windows,
    align,
    common_prefix,
    common_suffix,
    print_closest,
)
from tokscore.rendering.recorded_ids.answer_headers import find_headers, gathered, is_confirmed, unsure_nodes
from tokscore.rendering.recorded_ids.branch import Joined, RecordedBranch, join
from tokscore.rendering.recorded_ids.plain_text import tokenised
from tokscore.rendering.templates.origins import REASONING_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.conversations.conversation import AnswerLogprobs

MEDIA_STATUS = "media"
UNALIGNED_STATUS = "unaligned"
TEXT_STATUS = "rendered_text"
CONTENT_UNUSED_STATUS = "recorded_is_content_unused"
_ASSISTANT = "assistant"


class Recorded(NamedTuple):
    """A branch with its ids attributed.

    Attributes:
        tokens: The ids as recorded.
        status: What a reader should know, None if nothing.
    """

    tokens: RenderedTokens
    status: str | None


def branch_items(
    trace: Trace, tokenizer: ChatTokenizer, *, is_served: bool = False
) -> list[Conversation | RecordedBranch]:
    """Each branch of a trace: as a conversation to render where no ids are recorded, else with its ids.

    Args:
        trace: One record.
        tokenizer: Reads what is recorded as text.
        is_served: A server wrote it.

    Raises:
        ConversationError: Only some nodes of a branch have ids.
    """
    nodes = tokenised(trace, tokenizer) if trace.is_text else trace.nodes
    return [_branch_item(trace, [nodes[i] for i in path], is_served) for path in trace.branches]


def _branch_item(trace: Trace, nodes: Sequence[Node], is_served: bool) -> Conversation | RecordedBranch:
    conversation = Conversation(
        messages=[message for node in nodes for message in node.messages],
        tools=trace.tools,
        template_kwargs=trace.template_kwargs,
        metadata=trace.metadata,
        given=_given(nodes),
        status=trace.status,
        logprobs=_answer_logprobs(nodes),
        is_served=is_served,
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


def _given(nodes: Sequence[Node]) -> frozenset[int]:
    """The answers of a branch that the record says no model generated for it."""
    flags = [(message["role"], node.is_sampled) for node in nodes for message in node.messages]
    return frozenset(i for i, (role, is_sampled) in enumerate(flags) if role == _ASSISTANT and not is_sampled)


def _answer_logprobs(nodes: Sequence[Node]) -> dict[int, AnswerLogprobs] | None:
    """Of the messages of a branch, None without any."""
    found, message = {}, 0
    for node in nodes:
        if node.logprobs is not None:
            found[message] = node.logprobs
        message += len(node.messages)
    return found or None


def attribute_recorded(branch: RecordedBranch, renderer: Renderer) -> Recorded:
    """The recorded ids of a branch with the owner of each.

    Which tokens were sampled is what the record says. Their messages are those of their nodes; fields,
    content, and the messages of nodes that add several, are read off the template's own rendering wherever it
    has the same text. Elsewhere the source is "recorded", and tokens of a node that may hold several messages
    belong to none, which the status says. It also says where only some nodes record what is content.

    Args:
        branch: With the tokens of all nodes.
        renderer: The template and its tokenizer.

    Raises:
        ConversationError: An id is none of the tokenizer's.
    """
    nodes, token_ids = branch.nodes, joined_ids(branch.nodes)
    _check_ids(nodes, token_ids, renderer.tokenizer)
    messages = branch.conversation.messages
    is_control = renderer.tokenizer.flags(renderer.tokenizer.special_ids)[token_ids]
    text = renderer.tokenizer.text_of(token_ids)
    printed, opened = None, {}
    ends = opens = frozenset[int]()
    if not branch.is_text:
        if has_texts(messages):
            conversation, printed = print_closest(branch.conversation, renderer, text)
            branch = replace(branch, conversation=conversation)
        opened = find_headers(branch, renderer, printed, token_ids)
        if not is_confirmed(nodes, opened, is_control, renderer.tokenizer):
            nodes, opened = gathered(nodes), {}
        ends, opens = unsure_nodes(nodes, opened, is_control)
    recorded = join(nodes, ends, opens)
    owners, codes = recorded.owners.copy(), np.zeros(len(recorded.token_ids), np.int16)
    sources = [RECORDED_SOURCE]
    contents = [
        node.tokens.is_content for node in nodes if node.tokens is not None and len(node.tokens.token_ids)
    ]
    recorded_contents = [each for each in contents if each is not None]
    has_contents = len(recorded_contents) == len(contents)
    recorded_is_content = np.concatenate(recorded_contents) if has_contents and contents else None
    is_content = ~is_control & (owners != NO_MESSAGE) if recorded_is_content is None else recorded_is_content
    is_content = is_content.copy()
    unaligned = recorded.is_open & (owners == NO_MESSAGE)
    encoding = None if text is None else renderer.tokenizer.token_bytes.spans(text, recorded.token_ids)
    aligned, is_printed = None, np.zeros(len(token_ids), bool)
    if text is not None and encoding is not None and not branch.is_text and has_texts(messages):
        offsets = Encoding(recorded.token_ids, *encoding)
        found = _find_contents(nodes, messages, text, offsets, recorded, is_control, printed)
        for each in found if recorded_is_content is None else ():
            has_calls = bool(messages[each.message].get("tool_calls"))  # which stand beside the content
            is_answer = recorded.sampled_mask[each.node] == 1
            is_content[each.node] &= has_calls & is_answer
        for each in found:
            is_content[each.start : each.stop] = True
            codes[each.start : each.stop] = _code(sources, each.field)
        aligned = None if printed is None else align(printed, text, offsets, recorded.windows)
        if aligned is not None:
            usable = is_printed = aligned.is_aligned & _is_plausible(aligned, recorded.windows)
            owners[usable] = aligned.owners[usable]
            is_content[usable] = aligned.is_content[usable]
            own = np.array([_code(sources, source) for source in aligned.sources], np.int16)
            codes[usable] = own[aligned.source_codes[usable]]
            unaligned &= ~usable
    for header in opened.values():
        for token, source in zip(range(header.start, header.stop), header.sources, strict=True):
            if not is_printed[token] or owners[token] != header.message:
                owners[token], is_content[token], unaligned[token] = header.message, False, False
                codes[token] = _code(sources, source)
    if aligned is not None and unaligned.any() and text is not None and encoding is not None:
        spaces = [text[a:b].isspace() for a, b in zip(*encoding, strict=True)]
        _fill(unaligned, owners, recorded, aligned, messages, np.array(spaces))
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
        trainer_logprobs=recorded.trainer_logprobs,
    )
    statuses = [
        TEXT_STATUS if branch.is_text else None,
        UNALIGNED_STATUS if unaligned.any() else None,
        CONTENT_UNUSED_STATUS if recorded_contents and not has_contents else None,
        MEDIA_STATUS if has_media(messages) else None,
    ]
    return Recorded(tokens, ",".join(filter(None, statuses)) or None)


_NOT_RECORDED = "the record does not say which of its tokens were sampled"


def joined_ids(nodes: Sequence[Node]) -> NDArray[np.int32]:
    """The recorded ids of a branch, int32, shape [tokens]."""
    return np.concatenate([node.tokens.token_ids for node in nodes if node.tokens is not None])


def _is_plausible(aligned: Aligned, windows: Windows) -> NDArray[np.bool_]:
    """Whether the template's owner of a token can be meant.

    That is one of its node, the next answer, nobody, or a message of whose own words the node holds some.
    """
    owners = aligned.owners
    plausible: NDArray[np.bool_] = (owners >= windows.low) & (owners <= windows.high + 1)
    plausible |= owners == NO_MESSAGE
    if not plausible[aligned.is_aligned].all():
        keys = windows.nodes * (int(owners.max()) + 2) + owners
        plausible |= np.isin(keys, keys[aligned.is_aligned & aligned.is_content])
    return plausible


def _fill(
    unaligned: NDArray[np.bool_],
    owners: NDArray[np.int32],
    recorded: Joined,
    aligned: Aligned,
    messages: Sequence[Mapping[str, Any]],  # Any: JSON values
    is_space: NDArray[np.bool_],
) -> None:
    """Give unaligned tokens to the one message that they can be of.

    Messages come in order, and those that were found as the template prints them have no more tokens. White
    space goes to the message behind it.
    """
    windows = recorded.windows
    nodes = windows.nodes
    is_first = unaligned & np.append(True, ~unaligned[:-1] | (nodes[1:] != nodes[:-1]))
    for start in np.flatnonzero(is_first).tolist():
        differs = ~unaligned[start:] | (nodes[start:] != nodes[start])
        stop = start + int(np.append(np.flatnonzero(differs), len(differs))[0])
        left, right = int(windows.low[start]) - 1, int(windows.high[start]) + 1
        done = {left, right} | aligned.whole
        if start and nodes[start - 1] == nodes[start] and owners[start - 1] != NO_MESSAGE:
            left = int(owners[start - 1])
        if stop < len(nodes) and nodes[stop] == nodes[start] and owners[stop] != NO_MESSAGE:
            right = int(owners[stop])
        possible = {left} if left == right else set(range(left, right + 1)) - done
        if (recorded.sampled_mask[start:stop] == 1).all():
            possible = {i for i in possible if 0 <= i < len(messages) and messages[i]["role"] == _ASSISTANT}
        if is_space[start:stop].all():
            before = int(owners[start - 1]) if start else NO_MESSAGE
            possible = {right if right <= windows.high[start] else left if before == NO_MESSAGE else before}
        if len(possible) != 1:
            continue
        (owner,) = possible
        is_sampled = (recorded.sampled_mask[start:stop] == 1).any()
        if 0 <= owner < len(messages) and (not is_sampled or messages[owner]["role"] == _ASSISTANT):
            owners[start:stop] = owner
            unaligned[start:stop] = False


def _check_ids(nodes: Sequence[Node], token_ids: NDArray[np.int32], tokenizer: ChatTokenizer) -> None:
    n_ids = len(tokenizer.token_bytes.contents)
    if not len(token_ids):
        raise ConversationError("has no token ids at all.")
    if token_ids.max() < n_ids:
        return
    for tokens in (node.tokens for node in nodes if node.tokens is not None):
        for i in np.flatnonzero(tokens.token_ids >= n_ids)[:1].tolist():
            place = tokens.place(i)
            raise ConversationError(
                f"is the token id {tokens.token_ids[i]}; expected 0 to {n_ids - 1}, as {tokenizer.name} has.",
                path="$" if place is None else f"{place.path}[{place.start}]",
                hint="Give the model whose tokenizer made the ids.",
                source="" if place is None else place.source,
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
    joined: Joined,
    is_control: NDArray[np.bool_],
    printed: PrintedText | None,
) -> list[_Found]:
    """Where nodes of one message hold the text of its fields word for word, behind what others may own.

    Of several places it is the one between the words that the template prints around the field.
    """
    found, token, message = [], 0, 0
    for node in nodes:
        n_tokens = 0 if node.tokens is None else len(node.tokens.token_ids)
        first = token + int(joined.is_open[token : token + n_tokens].sum())
        token += n_tokens
        if len(node.messages) == 1 and first < token:
            whole = slice(token - n_tokens, token)
            for field in ("content", *REASONING_FIELDS):
                value = messages[message].get(field)
                if not isinstance(value, str) or not value:
                    continue
                root = field if field == "content" else REASONING_FIELDS[0]
                around = ("", "") if printed is None else printed.around(message, root)
                places = _places(value, text, encoding, slice(first, token), is_control)
                at = _between(places, len(value), text, around)
                if at is not None:
                    start = int(np.searchsorted(encoding.stops, at, side="right"))
                    stop = int(np.searchsorted(encoding.starts, at + len(value)))
                    found.append(_Found(message, whole, max(start, first), min(stop, token), root))
        message += len(node.messages)
    return found


def _places(
    value: str, text: str, encoding: Encoding, tokens: slice, is_control: NDArray[np.bool_]
) -> list[int]:
    """Where some tokens spell a text, unless that begins or ends inside a control token."""
    found = []
    at = text.find(value, int(encoding.starts[tokens.start]), int(encoding.stops[tokens.stop - 1]))
    while at >= 0:
        end = at + len(value)
        first = int(np.searchsorted(encoding.stops, at, side="right"))
        last = int(np.searchsorted(encoding.starts, end)) - 1
        begins_inside = is_control[first] and encoding.starts[first] < at
        ends_inside = is_control[last] and encoding.stops[last] > end
        if not begins_inside and not ends_inside:
            found.append(at)
        at = text.find(value, at + 1, int(encoding.stops[tokens.stop - 1]))
    return found


def _between(places: Sequence[int], length: int, text: str, around: tuple[str, str]) -> int | None:
    """The place that most of the text around goes with, the last of equals."""
    before, after = around

    def n_alike(at: int) -> int:
        left = text[max(at - len(before), 0) : at]
        return common_suffix(left, before) + common_prefix(
            text[at + length : at + length + len(after)], after
        )

    return max(reversed(places), key=n_alike, default=None)
