"""Answers as an engine sampled them, behind the prompt it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tokenizers.decoders import DecodeStream

from tokscore.dataset.errors import UsageError
from tokscore.dataset.tokens import RECORDED_SOURCE, MessageFlag, RenderedTokens
from tokscore.rendering.attribution.renderer import Renderer
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.conversations.conversation import Conversation, as_conversation
from tokscore.rendering.incremental.continuation import (
    Continuation,
    append,
    check_messages,
    check_new,
    unowned_tail,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What the sampled rule says of a rendered turn; of recorded ids it is known.
_RULE_FLAGS = (MessageFlag.NO_STOP_RENDERED, MessageFlag.PROMPT_DIFFERS, MessageFlag.HEADER_STRADDLED)


def add_answer(
    renderer: Renderer,
    conversation: Conversation | Mapping[str, Any],  # Any: JSON values
    tokens: RenderedTokens,
    message: Mapping[str, Any],
    token_ids: Sequence[int] | NDArray[np.integer[Any]],
) -> Continuation:
    """The prior ids, then the ids that an engine sampled for an answer, all of them kept as they are.

    The new tokens are sampled. Which are content, and of which field, is read off the template's rendering
    of `message` where it has the same text, in whatever tokens. Elsewhere their source is "recorded" and all
    but control tokens are content. Prior tokens of no message at the end, the generation prompt, become the
    answer's.

    Args:
        renderer: The template and its settings.
        conversation: The messages behind `tokens`, checked or as a record of the format `openai`.
        tokens: The prompt that the engine was given, generation prompt included.
        message: The answer as a message.
        token_ids: The answer as the engine sampled it, its stop included if one was sampled; shape [tokens].

    Raises:
        ConversationError: The template refuses the conversation with the answer.
        UsageError: `tokens` and `conversation` have different messages, or an id is none of the tokenizer's.
    """
    conversation = as_conversation(conversation)
    check_messages(conversation, tokens)
    check_new([message])
    index = len(conversation.messages)
    longer = replace(conversation, messages=[*conversation.messages, message])
    whole = renderer.with_generation_prompt(False).render(longer)
    facts = whole.messages[index]
    flags = (*(flag for flag in facts.flags if flag not in _RULE_FLAGS), MessageFlag.RECORDED)
    messages = (*tokens.messages, facts._replace(flags=flags, unknown_reason=None))
    behind = np.arange(len(tokens)) >= len(tokens) - len(unowned_tail(tokens))
    owners = np.where(behind, np.int32(index), tokens.message_indices)
    prior = replace(tokens, message_indices=owners, messages=messages)
    answer = _answer_tokens(renderer.tokenizer, token_ids, index, whole, _answer_start(tokens, whole, index))
    return Continuation(longer, append(prior, answer), len(tokens), index)


def _answer_start(tokens: RenderedTokens, whole: RenderedTokens, message_index: int) -> int | None:
    """First character of the answer in the text of `whole`, None where that cannot be told."""
    if whole.text is None or whole.char_starts is None:
        return None
    if tokens.text is not None and whole.text.startswith(tokens.text):
        return len(tokens.text)
    sampled = np.flatnonzero((whole.message_indices == message_index) & (whole.sampled_mask == 1))
    return int(whole.char_starts[sampled[0]]) if len(sampled) else None


def _answer_tokens(
    tokenizer: ChatTokenizer,
    token_ids: Sequence[int] | NDArray[np.integer[Any]],
    message_index: int,
    whole: RenderedTokens,
    start: int | None,
) -> RenderedTokens:
    """The answer, attributed as the same text from character `start` of `whole`."""
    try:
        ids = np.array(token_ids, np.int32).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the answer's ids are no ids ({error}); expected whole numbers.") from error
    n_ids = len(tokenizer.hf)
    if len(ids) and not 0 <= ids.min() <= ids.max() < n_ids:
        raise UsageError(
            f"the answer holds ids from {ids.min()} to {ids.max()}; {tokenizer.name} has 0 to {n_ids - 1}."
        )
    decoded = _decode(tokenizer, ids)
    is_content = ~np.isin(ids, list(tokenizer.special_ids))
    codes = np.full(len(ids), len(whole.sources), np.int16)  # recorded, unless they are found
    if start is not None:
        n_same = _n_same(tokenizer, ids, decoded, (whole.text or "")[start:])
        found = _overlapping(whole, start + decoded.starts[:n_same], start + decoded.stops[:n_same])
        is_content[:n_same] = whole.is_content[found]
        codes[:n_same] = whole.source_codes[found]
    return RenderedTokens(
        token_ids=ids,
        message_indices=np.full(len(ids), message_index, np.int32),
        sampled_mask=np.ones(len(ids), np.int8),
        is_content=is_content,
        source_codes=codes,
        sources=(*whole.sources, *([RECORDED_SOURCE] if (codes == len(whole.sources)).any() else [])),
        messages=(),
        text=decoded.text,
        char_starts=decoded.starts,
        char_stops=decoded.stops,
    )


class _Decoded(NamedTuple):
    text: str
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def _decode(tokenizer: ChatTokenizer, token_ids: NDArray[np.int32]) -> _Decoded:
    """Text of ids and the characters of each; tokens that share a character have its whole span."""
    stream = DecodeStream(skip_special_tokens=False)
    pieces: list[str] = []
    starts = np.zeros(len(token_ids), np.int64)
    stops = np.zeros(len(token_ids), np.int64)
    done = n_characters = 0
    for i, token_id in enumerate(token_ids.tolist()):
        piece = stream.step(tokenizer.hf.backend_tokenizer, token_id)
        if piece:
            pieces.append(piece)
            starts[done : i + 1] = n_characters
            n_characters += len(piece)
            stops[done : i + 1] = n_characters
            done = i + 1
    text = "".join(pieces)
    if done < len(token_ids):  # bytes of an unfinished character
        ending = tokenizer.hf.backend_tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)
        text = ending if ending.startswith(text) else text
    starts[done:] = n_characters
    stops[done:] = len(text)
    return _Decoded(text, starts, stops)


def _n_same(tokenizer: ChatTokenizer, ids: NDArray[np.int32], decoded: _Decoded, printed: str) -> int:
    """How many ids stand for the text that the template prints: all, all but a stop, or none.

    The template may leave the stop to the next message (GLM's `<|user|>`).
    """
    if printed.startswith(decoded.text):
        return len(ids)
    has_stop = int(ids[-1]) in tokenizer.special_ids | tokenizer.eos_ids
    return len(ids) - 1 if has_stop and printed.startswith(decoded.text[: decoded.starts[-1]]) else 0


def _overlapping(
    whole: RenderedTokens, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The first content token of `whole` in each span of characters, else its first token."""
    assert whole.char_starts is not None
    assert whole.char_stops is not None
    n = len(whole)
    first = np.minimum(np.searchsorted(whole.char_stops, starts, side="right"), n - 1)
    contents = np.where(whole.is_content, np.arange(n), n)
    content = np.minimum.accumulate(contents[::-1])[::-1][first]
    begins = whole.char_starts[np.minimum(content, n - 1)]
    return np.where((content < n) & (begins < stops), content, first)
