"""Attributed tokens put one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from tokscore.dataset.errors import UsageError
from tokscore.dataset.tokens import NO_MESSAGE, RenderedTokens
from tokscore.rendering.conversations.trace import joined_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray


def concatenate_slices(parts: Sequence[RenderedTokens]) -> RenderedTokens:
    """Slices of one conversation as one; message indices and characters stay those of the conversation.

    Args:
        parts: At least one. Slices that follow each other give back the tokens they were cut from; others
            leave the tokens between them out.

    Raises:
        UsageError: No part, or parts of different conversations.
    """
    if not parts:
        raise UsageError("there are no slices to put together; expected at least one.")
    for i, part in enumerate(parts):
        if part.messages != parts[0].messages or part.text != parts[0].text:
            raise UsageError(
                f"slice {i} belongs to another conversation than the first. "
                "Use pack_conversations to put different conversations one behind the other."
            )
    return joined(parts)


def pack_conversations(parts: Sequence[RenderedTokens]) -> RenderedTokens:
    """Different conversations one behind the other; the messages of each count on from those before it.

    The text is there if all parts have it.

    Args:
        parts: Whole conversations, or slices that count as such; at least one.

    Raises:
        UsageError: No part.
    """
    if not parts:
        raise UsageError("there are no conversations to pack; expected at least one.")
    texts = [part.text for part in parts if part.text is not None]
    has_text = len(texts) == len(parts)
    first_messages = accumulate((len(part.messages) for part in parts), initial=0)
    first_characters = accumulate(map(len, texts), initial=0) if has_text else [0] * len(parts)
    moved = [
        shifted(part, n_messages=n_messages, n_characters=n_characters)
        for part, n_messages, n_characters in zip(parts, first_messages, first_characters, strict=False)
    ]
    return replace(
        joined(moved),
        messages=tuple(chain.from_iterable(part.messages for part in parts)),
        n_untracked_characters=sum(part.n_untracked_characters for part in parts),
        text="".join(texts) if has_text else None,
    )


def shifted(tokens: RenderedTokens, *, n_messages: int = 0, n_characters: int = 0) -> RenderedTokens:
    """The tokens with message indices and character offsets moved up."""
    indices = tokens.message_indices
    return replace(
        tokens,
        message_indices=np.where(indices == NO_MESSAGE, NO_MESSAGE, indices + np.int32(n_messages)),
        char_starts=None if tokens.char_starts is None else tokens.char_starts + n_characters,
        char_stops=None if tokens.char_stops is None else tokens.char_stops + n_characters,
    )


def merged_sources(parts: Sequence[RenderedTokens]) -> tuple[tuple[str, ...], list[NDArray[np.int16]]]:
    """The sources of all parts, each once, and the source codes of every part among them."""
    sources = tuple(dict.fromkeys(chain.from_iterable(part.sources for part in parts)))
    code = {source: i for i, source in enumerate(sources)}
    recoded = [
        np.array([code[source] for source in part.sources], np.int16)[part.source_codes] for part in parts
    ]
    return sources, recoded


def joined(parts: Sequence[RenderedTokens]) -> RenderedTokens:
    """The tokens of all parts as they are, with the messages and text of the first.

    Character offsets are there if all parts have them.
    """
    sources, codes = merged_sources(parts)
    starts = [part.char_starts for part in parts if part.char_starts is not None]
    stops = [part.char_stops for part in parts if part.char_stops is not None]
    lengths = [len(part) for part in parts]
    has_characters = len(starts) == len(stops) == len(parts)
    return replace(
        parts[0],
        token_ids=np.concatenate([part.token_ids for part in parts]),
        message_indices=np.concatenate([part.message_indices for part in parts]),
        sampled_mask=np.concatenate([part.sampled_mask for part in parts]),
        is_content=np.concatenate([part.is_content for part in parts]),
        source_codes=np.concatenate(codes),
        sources=sources,
        text=parts[0].text if has_characters else None,
        char_starts=np.concatenate(starts) if has_characters else None,
        char_stops=np.concatenate(stops) if has_characters else None,
        recorded_logprobs=joined_logprobs([part.recorded_logprobs for part in parts], lengths),
        trainer_logprobs=joined_logprobs([part.trainer_logprobs for part in parts], lengths),
        recorded_is_content=_joined_contents(parts),
    )


def _joined_contents(parts: Sequence[RenderedTokens]) -> NDArray[np.bool_] | None:
    columns = [part.recorded_is_content for part in parts if part.recorded_is_content is not None]
    return np.concatenate(columns) if len(columns) == len(parts) else None
