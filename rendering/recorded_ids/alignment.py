"""Which characters of a recorded text are which of the template's rendering of the same messages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import RunTable, run_table, token_owners
from tokscore.rendering.attribution.tokenizer import Encoding
from tokscore.rendering.conversations.conversation import Conversation, has_media

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.rendering.attribution.renderer import Renderer


class Windows(NamedTuple):
    """Where the messages of a branch can stand, by token; each array of shape [tokens].

    Attributes:
        nodes: int32, the node of the token; ascending.
        low: int32, first message that the node may hold; ascending.
        high: int32, last one; ascending.
    """

    nodes: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]

    def characters(self, message: int, encoding: Encoding) -> tuple[int, int]:
        """Where text of a message can be, half-open: in the nodes that may hold it and in the next one."""
        first = int(np.searchsorted(self.high, message))
        last = int(np.searchsorted(self.low, message, side="right"))
        if last < len(self.nodes):
            last = int(np.searchsorted(self.nodes, self.nodes[last], side="right"))
        return (int(encoding.starts[first]), int(encoding.stops[last - 1])) if first < last else (0, 0)


class Aligned(NamedTuple):
    """Owner and kind of each recorded token by the template's rendering; arrays of shape [tokens].

    Attributes:
        is_aligned: bool, the rendering has its text.
        owners: int32, its message.
        is_content: bool.
        source_codes: int16, indices into `sources`.
        sources: Field path roots.
        whole: Messages whose text was found from its beginning to its end, white space behind it aside.
    """

    is_aligned: NDArray[np.bool_]
    owners: NDArray[np.int32]
    is_content: NDArray[np.bool_]
    source_codes: NDArray[np.int16]
    sources: tuple[str, ...]
    whole: frozenset[int]


class _Block(NamedTuple):
    """Characters that are the same in both texts."""

    ours: int
    theirs: int
    length: int


class PrintedText(NamedTuple):
    """Messages as the template prints them.

    Attributes:
        text: Of all of them.
        runs: What each of its characters is.
    """

    text: str
    runs: RunTable

    def around(self, message: int, source: str) -> tuple[str, str]:
        """The text of a message before and behind that of one of its fields, empty where it has none."""
        own = self.runs.source_codes == (*self.runs.sources, source).index(source)
        inside = np.flatnonzero(own & (self.runs.input_of == message))
        if not len(inside):
            return "", ""
        first, last = int(self.runs.starts[inside[0]]), int(self.runs.stops[inside[-1]])
        writer = np.flatnonzero(self.runs.writer == self.runs.writer[inside[0]])
        start, stop = int(self.runs.starts[writer[0]]), int(self.runs.stops[writer[-1]])
        return self.text[start:first], self.text[last:stop]


def print_messages(
    conversation: Conversation, renderer: Renderer, *, prompt: bool = False
) -> PrintedText | None:
    """The text that the template prints, None where it refuses the messages and where they hold media.

    Args:
        conversation: The messages.
        renderer: The template.
        prompt: End with the generation prompt.
    """
    if has_media(conversation.messages):
        return None
    try:
        rendered = renderer.with_generation_prompt(prompt).print(conversation, 0).rendered
    except ConversationError:
        return None  # the template refuses what was recorded under another
    return PrintedText(rendered.text, run_table(rendered.runs))


def print_closest(
    conversation: Conversation, renderer: Renderer, text: str | None
) -> tuple[Conversation, PrintedText | None]:
    """Messages as the template prints them, in the form that comes closest to what was recorded.

    An engine saw the messages as its server showed them, or as they are where no server was between.

    Args:
        conversation: The messages.
        renderer: The template.
        text: Of the recorded ids, None where it is unknown.

    Returns:
        The conversation that is printed so, and the text; None as of `print_messages`.
    """
    if text is None or not renderer.has_forms(conversation):
        return conversation, print_messages(conversation, renderer)
    best: tuple[int, Conversation, PrintedText | None] = (-1, conversation, None)
    for is_served in (True, False):
        tried = replace(conversation, is_served=is_served)
        printed = print_messages(tried, renderer)
        if printed is None:
            continue
        n_equal = common_prefix(text, printed.text)
        if n_equal > best[0]:
            best = n_equal, tried, printed
        if n_equal >= min(len(text), len(printed.text)):
            break
    return best[1:]


def align(printed: PrintedText, text: str, encoding: Encoding, windows: Windows) -> Aligned | None:
    """The template's owners for the text that it prints too.

    That is the text which both have at their start and at their end, white space behind the last of it aside,
    and between these every message that the recorded text has as the template prints it.

    Args:
        printed: The messages as the template prints them.
        text: Of the recorded ids.
        encoding: Where in it every token is.
        windows: Where the messages can stand.

    Returns:
        None where nothing is the same.
    """
    theirs, runs = printed
    blocks = _blocks(text, theirs, runs, encoding, windows)
    starts = np.array([block.ours for block in blocks])
    stops = np.array([block.ours + block.length for block in blocks])
    shifts = np.array([block.theirs - block.ours for block in blocks])
    at = np.searchsorted(starts, encoding.starts, side="right") - 1
    is_aligned = (encoding.stops <= stops[at]) & (encoding.stops > encoding.starts)
    if not is_aligned.any():
        return None
    last = max(len(theirs) - 1, 0)
    found = Encoding(
        encoding.token_ids,
        np.where(is_aligned, encoding.starts + shifts[at], last),
        np.where(is_aligned, encoding.stops + shifts[at], last),
    )
    owners = token_owners(runs, found)
    return Aligned(
        is_aligned,
        owners.message_indices,
        owners.is_content,
        owners.source_codes,
        tuple(runs.sources),
        _whole(theirs, runs, blocks),
    )


def _whole(theirs: str, runs: RunTable, blocks: list[_Block]) -> frozenset[int]:
    """The messages of which every character is in a block, white space at their end aside."""
    starts = [block.theirs for block in blocks]
    partly: set[int] = set()
    all_found: set[int] = set()
    for start, stop, message in written_blocks(runs, 0, len(theirs)):
        last = start + len(theirs[start:stop].rstrip())
        block = blocks[bisect_right(starts, start) - 1]
        (all_found if last <= block.theirs + block.length else partly).add(message)
    return frozenset(all_found - partly)


def _blocks(text: str, theirs: str, runs: RunTable, encoding: Encoding, windows: Windows) -> list[_Block]:
    """Equal characters in the order of both texts; the first block starts with them, if only with nothing."""
    n_start = _whole_lines(text, theirs, runs, common_prefix(text, theirs))
    our_end, their_end = len(text), len(theirs)
    if text[-1:] != theirs[-1:]:  # a template's newline behind the last stop is never sampled
        our_end, their_end = len(text.rstrip()), len(theirs.rstrip())
    n_end = common_suffix(text[n_start:our_end], theirs[n_start:their_end])
    blocks = [_Block(0, 0, n_start)]
    at, end = n_start, our_end - n_end
    if at < end and n_start < their_end - n_end:
        for start, stop, message in written_blocks(
            runs, n_start, their_end - n_end if n_end else len(theirs)
        ):
            printed = theirs[start:stop].rstrip()
            low, high = windows.characters(message, encoding)
            found = text.find(printed, max(at, low), min(end, high)) if printed else -1
            if found >= 0:
                length = len(printed)
                length += _common_space(text[found + length : end], theirs[start + length : stop])
                blocks.append(_Block(found, start, length))
                at = found + length
    blocks.append(_Block(end, their_end - n_end, n_end))
    return blocks


def _whole_lines(text: str, theirs: str, runs: RunTable, n_equal: int) -> int:
    """An equal beginning without the part of a line of the template's own at its end.

    That goes on otherwise in the record: the `<` of an answer `<a>` is not that of the template's `<think>`.
    """
    if not 0 < n_equal < min(len(text), len(theirs)):
        return n_equal
    last, behind = runs.at(np.array([n_equal - 1, n_equal])).tolist()
    if last != behind or runs.is_body[last]:
        return n_equal
    start = int(runs.starts[last])
    return max(start, theirs.rfind("\n", start, n_equal) + 1)


def written_blocks(runs: RunTable, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The text of each message between two characters: first character, one past the last, message."""
    firsts = np.flatnonzero(np.append(True, runs.writer[1:] != runs.writer[:-1]))
    starts = runs.starts[firsts]
    stops = np.append(starts[1:], runs.stops[-1])
    writers = runs.writer[firsts]
    inside = (starts >= start) & (stops <= stop) & (writers != NO_MESSAGE)
    found = starts[inside].tolist(), stops[inside].tolist(), writers[inside].tolist()
    return list(zip(*found, strict=True))


def _common_space(left: str, right: str) -> int:
    space = right[: len(right) - len(right.lstrip())]
    return common_prefix(left[: len(space)], space)


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
