"""Many conversations in batches give what each gives alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokscore.rendering import ChatTokenizer, Conversation, ConversationError, Renderer, batches
from tokscore.rendering.batches import render_many


def conversation(text: str) -> Conversation:
    return Conversation([{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}])


@pytest.mark.parametrize("size", [1, 3, 100])
def test_batches_of_any_size_give_the_same(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(batches, "BATCH_CONVERSATIONS", size)
    renderer = Renderer(ChatTokenizer(str(tiny_model)))
    conversations = [conversation("é" * n + "x") for n in range(10)]
    for alone, together in zip(conversations, render_many(renderer, conversations), strict=True):
        tokens = renderer.render(alone)
        assert not isinstance(together, ConversationError)
        assert np.array_equal(tokens.token_ids, together.token_ids)
        assert np.array_equal(tokens.message_indices, together.message_indices)
        assert np.array_equal(tokens.sampled_mask, together.sampled_mask)
        assert tokens.messages == together.messages


def test_errors_come_in_their_place(tiny_model: Path) -> None:
    earlier = ConversationError("is bad")
    results = list(
        render_many(
            Renderer(ChatTokenizer(str(tiny_model))),
            [conversation("a"), earlier, conversation("\ud800"), conversation("b")],
        )
    )
    assert [isinstance(result, ConversationError) for result in results] == [False, True, True, False]
    assert results[1] is earlier
    assert "half of a character pair" in str(results[2])


def test_the_number_in_the_input_decides_whose_ids_are_verified(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ChatTokenizer(str(tiny_model))
    encode_batch = tokenizer.token_ids
    monkeypatch.setattr(tokenizer, "token_ids", lambda texts: [ids[:-1] for ids in encode_batch(texts)])
    monkeypatch.setattr(tokenizer, "align", lambda text, ids: _first_characters(ids))
    results = list(render_many(Renderer(tokenizer), [conversation("ab")] * 95, first_number=7))
    wrong = [number for number, result in enumerate(results, 7) if isinstance(result, ConversationError)]
    assert wrong == [7, 8, 9, 100]


def _first_characters(ids: np.ndarray) -> object:
    from tokscore.rendering.attribution.tokenizer import Encoding

    return Encoding(ids, np.arange(len(ids)), np.arange(len(ids)) + 1)
