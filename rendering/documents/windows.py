"""The tokens of a text, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.dataset.tokens import (
    CONTEXT_SOURCE,
    NO_MESSAGE,
    TEMPLATE_SOURCE,
    TEXT_SOURCE,
    RenderedTokens,
)

if TYPE_CHECKING:
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer
    from tokscore.rendering.documents.chunking import Chunk, Chunking
    from tokscore.rendering.documents.document import Document

TAIL_LEFT_OUT_STATUS = "tail_left_out"
_SOURCES = (TEMPLATE_SOURCE, TEXT_SOURCE, CONTEXT_SOURCE)
_TEMPLATE, _TEXT, _CONTEXT = range(len(_SOURCES))


class Window(NamedTuple):
    """Some tokens of a text that are read together.

    Attributes:
        tokens: Ids with their owners, none of them a message.
        status: What a reader should know, None if nothing.
        metadata: That of the document.
    """

    tokens: RenderedTokens
    status: str | None
    metadata: str | None


def windows(document: Document, tokenizer: ChatTokenizer, chunking: Chunking | None) -> Iterator[Window]:
    """The windows of a text, made one by one; the whole text is one without `chunking`.

    Before the text stands what the tokenizer puts before any text, unless it opens with that already. Windows
    behind the first begin with it too, in the place of their own first ids, as llama.cpp has it. It is the
    template's; of the others, those that count are content.

    Args:
        document: The text.
        tokenizer: That makes the ids, of the whole text at once.
        chunking: Where the windows lie.

    Raises:
        ConversationError: The text has no token, or too few for a window.
    """
    tokens = _whole(document, tokenizer)
    if chunking is None:
        return iter([Window(tokens, None, document.metadata)])
    n = len(tokens)
    if chunking.n_left_out(n) == n:
        raise ConversationError(
            f"has {counted(n, 'token')}, fewer than a `chunk` of {chunking.size:,}; with `context`, tokens "
            "that fill no chunk are left out.",
            hint="Leave `context` out, or take smaller chunks.",
        )
    return _cut(tokens, tokenizer.opening_ids, chunking, document.metadata)


def _whole(document: Document, tokenizer: ChatTokenizer) -> RenderedTokens:
    text, opening = document.text, np.array(tokenizer.opening_ids, np.int32)
    ids = tokenizer.token_ids([text])[0]
    if not len(ids):
        raise ConversationError("has no token at all.")
    spans = tokenizer.token_bytes.spans(text, ids)
    n_put = 0 if np.array_equal(ids[: len(opening)], opening) else len(opening)
    ids = np.append(opening[:n_put], ids)
    is_opening = np.arange(len(ids)) < len(opening)
    starts, stops = (None, None) if spans is None else (np.append(np.zeros(n_put, int), s) for s in spans)
    return RenderedTokens(
        token_ids=ids,
        message_indices=np.full(len(ids), NO_MESSAGE, np.int32),
        sampled_mask=np.where(is_opening, 0, -1).astype(np.int8),
        is_content=~is_opening,
        source_codes=np.where(is_opening, _TEMPLATE, _TEXT).astype(np.int16),
        sources=_SOURCES,
        messages=(),
        text=None if spans is None else text,
        char_starts=starts,
        char_stops=stops,
    )


def _cut(
    tokens: RenderedTokens, opening: tuple[int, ...], chunking: Chunking, metadata: str | None
) -> Iterator[Window]:
    end = len(tokens) - chunking.n_left_out(len(tokens))
    for chunk in chunking.chunks(len(tokens)):
        is_last_of_longer = chunk.stop == end < len(tokens)
        status = TAIL_LEFT_OUT_STATUS if is_last_of_longer else None
        yield Window(_window(tokens, chunk, opening), status, metadata)


def _window(tokens: RenderedTokens, chunk: Chunk, opening: tuple[int, ...]) -> RenderedTokens:
    window = tokens[chunk.start : chunk.stop]
    ids, sampled, stops = window.token_ids.copy(), window.sampled_mask.copy(), window.char_stops
    n = min(len(opening), len(ids))
    if chunk.start:
        ids[:n], sampled[:n] = opening[:n], 0
        if stops is not None and window.char_starts is not None:
            stops = np.append(window.char_starts[:n], stops[n:])
    position = np.arange(len(ids))
    codes = np.where(position < chunk.n_context, _CONTEXT, _TEXT)
    codes[:n] = _TEMPLATE
    return replace(
        window,
        token_ids=ids,
        sampled_mask=sampled,
        is_content=codes == _TEXT,
        source_codes=codes.astype(np.int16),
        char_stops=stops,
    )
