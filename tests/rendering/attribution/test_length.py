from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokscore.rendering import ChatTokenizer, Conversation, ConversationError, RenderedTokens, Renderer
from tokscore.rendering.attribution.length import LengthLimit
from tokscore.rendering.attribution.settings import Truncate

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there!"}]


@pytest.fixture(scope="module")
def tokens(tiny_model: Path) -> RenderedTokens:
    return Renderer(ChatTokenizer(str(tiny_model))).render(Conversation(MESSAGES))


@pytest.mark.slow
def test_the_kept_tokens_of_a_cut_answer_stay_sampled(tokens: RenderedTokens) -> None:
    first_sampled = int(np.flatnonzero(tokens.sampled_mask)[0])
    kept, status = LengthLimit(first_sampled + 3, Truncate.RIGHT).apply(tokens)
    assert status == "truncated_right"
    assert kept.sampled_mask.tolist() == [0] * first_sampled + [1] * 3
    assert kept.message_indices.tolist() == tokens.message_indices[: first_sampled + 3].tolist()
    assert kept.messages == tokens.messages


def test_the_last_tokens_are_kept_from_the_left(tokens: RenderedTokens) -> None:
    kept, status = LengthLimit(4, Truncate.LEFT).apply(tokens)
    assert status == "truncated_left"
    for name in ("token_ids", "message_indices", "sampled_mask", "is_content", "source_codes"):
        assert getattr(kept, name).tolist() == getattr(tokens, name)[-4:].tolist()


@pytest.mark.parametrize("truncate", list(Truncate))
def test_a_conversation_of_the_allowed_length_is_left_alone(
    tokens: RenderedTokens, truncate: Truncate
) -> None:
    assert LengthLimit(len(tokens), truncate).apply(tokens) == (tokens, None)


def test_a_conversation_beyond_it_is_an_error_by_default(tokens: RenderedTokens) -> None:
    with pytest.raises(ConversationError, match=f"has {len(tokens)} tokens; `max_tokens` allows 5"):
        LengthLimit(5).apply(tokens)
