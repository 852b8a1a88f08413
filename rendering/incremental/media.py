"""Placeholders of images and audio, expanded as a processor does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokscore.dataset.errors import UsageError
from tokscore.dataset.tokens import RenderedTokens

_MEDIA_SOURCE = "content"


def expand_placeholders(
    tokens: RenderedTokens, placeholder_id: int, n_tokens: Sequence[int]
) -> RenderedTokens:
    """The tokens with every placeholder repeated as often as its image or audio takes ids.

    The repeated ids belong to the message that the placeholder belongs to. They are content, of source
    "content", and never sampled; all have the characters of the placeholder.

    Args:
        tokens: As rendered, one placeholder for each image or audio.
        placeholder_id: Id that the template prints for one.
        n_tokens: Ids that each takes, in the order of the text; at least 1 each.

    Raises:
        UsageError: There are more or fewer placeholders, or a count is below 1.
    """
    places = np.flatnonzero(tokens.token_ids == placeholder_id)
    if len(places) != len(n_tokens):
        raise UsageError(
            f"{len(n_tokens)} media were given for {len(places)} placeholders with id {placeholder_id}; "
            "expected one for each."
        )
    if min(n_tokens, default=1) < 1:
        raise UsageError(f"a medium takes {min(n_tokens)} ids; expected at least 1.")
    sources = tuple(dict.fromkeys((*tokens.sources, _MEDIA_SOURCE)))
    is_media = np.zeros(len(tokens), bool)
    is_media[places] = True
    times = np.ones(len(tokens), np.int64)
    times[places] = n_tokens
    sampled = np.where(is_media, np.int8(0), tokens.sampled_mask)
    codes = np.where(is_media, np.int16(sources.index(_MEDIA_SOURCE)), tokens.source_codes)
    contents = tokens.recorded_is_content

    def elsewhere(logprobs: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        return (
            None if logprobs is None else np.repeat(np.where(is_media, np.float32(np.nan), logprobs), times)
        )

    return replace(
        tokens,
        token_ids=np.repeat(tokens.token_ids, times),
        message_indices=np.repeat(tokens.message_indices, times),
        sampled_mask=np.repeat(sampled, times),
        is_content=np.repeat(tokens.is_content | is_media, times),
        source_codes=np.repeat(codes, times),
        sources=sources,
        char_starts=None if tokens.char_starts is None else np.repeat(tokens.char_starts, times),
        char_stops=None if tokens.char_stops is None else np.repeat(tokens.char_stops, times),
        recorded_logprobs=elsewhere(tokens.recorded_logprobs),
        trainer_logprobs=elsewhere(tokens.trainer_logprobs),
        recorded_is_content=None if contents is None else np.repeat(contents, times),
    )
