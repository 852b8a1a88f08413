"""The tokens of a text, whole and in windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering import ChatTokenizer
from tokscore.rendering.documents.chunking import Chunking
from tokscore.rendering.documents.document import Document
from tokscore.rendering.documents.windows import Window, windows

TEXT = "Größe: 5 µm. 🤗 " + " ".join(f"The {i}th fox jumps over the lazy dog.\n" for i in range(40))
BOS = 128000  # of Llama 3.1


@pytest.fixture(scope="module")
def with_bos(assets: Path) -> ChatTokenizer:
    return ChatTokenizer(str(assets / "tokenizers" / "llama3_1"), template="")


@pytest.fixture(scope="module")
def without_bos(qwen3: Path) -> ChatTokenizer:
    return ChatTokenizer(str(qwen3), template="")


each_tokenizer = pytest.mark.parametrize("name", ["with_bos", "without_bos"])


def cut(tokenizer: ChatTokenizer, chunking: Chunking | None, text: str = TEXT) -> list[Window]:
    return list(windows(Document(text, '{"a":1}'), tokenizer, chunking))


@each_tokenizer
def test_a_whole_text_has_the_ids_that_transformers_gives_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: ChatTokenizer = request.getfixturevalue(name)
    ((tokens, status, metadata),) = cut(tokenizer, None)
    assert tokens.token_ids.tolist() == tokenizer.hf(TEXT)["input_ids"]
    n_opening = len(tokenizer.opening_ids)
    is_text = np.arange(len(tokens)) >= n_opening
    assert [tokens.sources[code] for code in tokens.source_codes] == [
        *["template"] * n_opening,
        *["text"] * int(is_text.sum()),
    ]
    np.testing.assert_array_equal(tokens.is_content, is_text)
    np.testing.assert_array_equal(tokens.sampled_mask, np.where(is_text, -1, 0))
    assert set(tokens.message_indices.tolist()) == {-1}
    assert (tokens.messages, status, metadata) == ((), None, '{"a":1}')
    assert tokens.text is not None
    assert "".join(tokens.text[slice(*tokens.char_span(i))] for i in range(n_opening)) == ""
    assert tokens.char_span(n_opening).start == 0
    assert tokens.char_span(len(tokens) - 1).stop == len(TEXT)


@each_tokenizer
def test_windows_are_those_of_llama_cpp(name: str, request: pytest.FixtureRequest) -> None:
    """Full ones alone, each with the BOS in the place of its first id, as perplexity.cpp has it."""
    tokenizer: ChatTokenizer = request.getfixturevalue(name)
    ids = tokenizer.hf(TEXT)["input_ids"]
    found = cut(tokenizer, Chunking(64, 64, 33))
    assert len(found) == len(ids) // 64 > 5
    for i, window in enumerate(found):
        expected = ids[64 * i : 64 * i + 64]
        expected[: len(tokenizer.opening_ids)] = tokenizer.opening_ids
        assert window.tokens.token_ids.tolist() == expected
        sources = [window.tokens.sources[code] for code in window.tokens.source_codes]
        assert sources[33:] == ["text"] * 31
        assert set(sources[len(tokenizer.opening_ids) : 33]) == {"context"}
        np.testing.assert_array_equal(window.tokens.is_content, np.arange(64) >= 33)
    assert [window.status for window in found] == [None] * (len(found) - 1) + ["tail_left_out"]


@each_tokenizer
def test_windows_with_a_stride_hold_every_token_as_text_once(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: ChatTokenizer = request.getfixturevalue(name)
    ids, n_opening = tokenizer.hf(TEXT)["input_ids"], len(tokenizer.opening_ids)
    found = cut(tokenizer, Chunking(50, 20, None))
    counted = [i for each in found for i in each.tokens.token_ids[each.tokens.is_content].tolist()]
    assert counted == ids[n_opening:]
    assert {each.status for each in found} == {None}
    for i, each in enumerate(found):
        assert each.tokens.token_ids[n_opening:].tolist() == ids[20 * i : 20 * i + 50][n_opening:]


def test_a_text_that_opens_with_the_bos_gets_no_other(with_bos: ChatTokenizer) -> None:
    ((tokens, _, _),) = cut(with_bos, None, "<|begin_of_text|>Hello")
    assert (tokens.token_ids == BOS).tolist() == [True, False]


def test_where_a_window_opens_its_first_tokens_stand_for_no_character(with_bos: ChatTokenizer) -> None:
    first, second, *_ = cut(with_bos, Chunking(16, 16, None))
    assert second.tokens.char_span(0).start == second.tokens.char_span(0).stop
    assert second.tokens.char_span(0).start == first.tokens.char_span(15).stop
    assert second.tokens.text == TEXT


def test_a_text_that_fills_no_window_is_refused_where_its_end_is_left_out(without_bos: ChatTokenizer) -> None:
    with pytest.raises(ConversationError, match="has 1 token, fewer than a `chunk` of 64"):
        cut(without_bos, Chunking(64, 64, 33), "Hello")
    (only,) = cut(without_bos, Chunking(64, 64, None), "Hello")
    assert len(only.tokens) == 1
