"""Logprobs that a server gave with the text of an answer's tokens instead of their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokscore.rendering.conversations.conversation import LOGPROBS_UNUSED_STATUS, AnswerLogprobs

if TYPE_CHECKING:
    from tokscore.dataset.tokens import RenderedTokens
    from tokscore.rendering.attribution.tokenizer import ChatTokenizer

_REPLACED = "\ufffd".encode()


def with_logprobs(
    tokens: RenderedTokens, answers: Mapping[int, AnswerLogprobs], tokenizer: ChatTokenizer
) -> tuple[RenderedTokens, str | None]:
    """The tokens with the logprobs of answers that were sampled as they are rendered, and a status of others.

    An answer is the same where its sampled tokens are those of the server one by one; the token that ends it,
    which some servers leave out, may be missing or without text.

    Args:
        tokens: Rendered.
        answers: By message.
        tokenizer: That made the ids.
    """
    recorded = np.full(len(tokens), np.nan, np.float32)
    is_unused = False
    for message, given in answers.items():
        places = np.flatnonzero((tokens.message_indices == message) & (tokens.sampled_mask == 1))
        n = len(given.texts)
        ids = tokens.token_ids[places].tolist()
        if given.token_ids is None:
            is_same = _are_same(ids, given.texts, tokenizer)
        else:
            is_same = ids[:n] == list(given.token_ids) and set(ids[n:]) <= tokenizer.special_ids
        if is_same:
            recorded[places[:n]] = given.logprobs
        else:
            is_unused = True
    if np.isfinite(recorded).any() or np.isinf(recorded).any():
        tokens = replace(tokens, recorded_logprobs=recorded)
    return tokens, LOGPROBS_UNUSED_STATUS if is_unused else None


def _are_same(token_ids: Sequence[int], texts: Sequence[bytes], tokenizer: ChatTokenizer) -> bool:
    contents = tokenizer.token_bytes.contents
    ends_alike = len(token_ids) == len(texts)
    if token_ids and token_ids[-1] in tokenizer.special_ids and (not ends_alike or not texts[-1]):
        token_ids, texts = token_ids[:-1], texts[:-1] if ends_alike else texts
    return len(token_ids) == len(texts) and all(
        _is_text_of(contents[token_id], text) for token_id, text in zip(token_ids, texts, strict=True)
    )


def _is_text_of(content: bytes | None, text: bytes) -> bool:
    if content is None or content == text:
        return content is not None
    return _REPLACED in text and content.decode(errors="replace").encode() == text
