"""Tokens aligned by their bytes lie where the tokenizer's own offsets say."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tests.sweeps import sweep
from tokscore.rendering import ChatTokenizer
from tokscore.rendering.attribution.token_bytes import TokenBytes

TOKENIZERS = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
PIECES = (
    *(
        "Hello",
        " ",
        "  ",
        "\n\n",
        "42",
        "tab\t",
        "def f(x):\n    return x",
        'a"b\\c',
        "\x00",
        "\u200b",
        "\r\n",
    ),
    *("e\u0301x 🎉 你好", "ﬁ ½", "👨‍👩‍👧", "مرحبا", "Å Å", "한국어", "▁x", "▁▁", "🇩🇪"),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "<|end|>",
        "<bos>",
    ),
)


@lru_cache
def load(assets: Path, tokenizer: str) -> ChatTokenizer:
    return ChatTokenizer(str(assets / "tokenizers" / tokenizer), template="{{ messages }}")


def texts(n: int, n_pieces: int) -> list[str]:
    rng = random.Random(n_pieces)
    return ["".join(rng.choices(PIECES, k=rng.randrange(1, n_pieces))) for _ in range(n)]


@pytest.mark.parametrize("name", sweep(TOKENIZERS, quick=["qwen3"]))
def test_bytes_and_offsets_give_the_same_characters(assets: Path, name: str) -> None:
    tokenizer = load(assets, name)
    aligned_by_bytes = 0
    for text in texts(500, 14):
        theirs = tokenizer.hf.backend_tokenizer.encode(text, add_special_tokens=False)
        encoding = tokenizer.encode(text)
        assert encoding.token_ids.tolist() == theirs.ids
        assert list(zip(encoding.starts.tolist(), encoding.stops.tolist(), strict=True)) == theirs.offsets
        aligned_by_bytes += tokenizer.token_bytes.spans(text, encoding.token_ids) is not None
    assert aligned_by_bytes > 250  # the others hold characters that a normaliser changes, or a literal "▁"


@pytest.mark.parametrize("name", sweep(TOKENIZERS, quick=["qwen3"]))
def test_long_texts_have_the_ids_of_the_whole(assets: Path, name: str) -> None:
    tokenizer = load(assets, name)
    for text in texts(4, 20_000):
        ids = tokenizer.hf.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.token_ids([text, "x"])[0].tolist() == ids


def test_tokens_of_one_character_all_cover_it() -> None:
    token_bytes = TokenBytes([b"a", "é".encode()[:1], "é".encode()[1:], " 你".encode()])
    spans = token_bytes.spans("aé 你a", np.array([0, 1, 2, 3, 0], np.int32))
    assert spans is not None
    assert spans.starts.tolist() == [0, 1, 1, 2, 4]
    assert spans.stops.tolist() == [1, 2, 2, 4, 5]


@pytest.mark.parametrize(
    ("text", "ids"), [("ab", [0]), ("a", [0, 1]), ("ba", [0, 1]), ("a", [2]), ("a", [9])]
)
def test_tokens_that_do_not_spell_the_text_are_not_aligned(text: str, ids: list[int]) -> None:
    assert TokenBytes([b"a", b"b", None]).spans(text, np.array(ids, np.int32)) is None
