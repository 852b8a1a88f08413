"""Tokenizers of every kind: aligned with their text, or refused when they are loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import CHATML
from tokscore.rendering import ChatTokenizer, Conversation, ConversationError, InputError, Renderer
from tokscore.rendering.attribution.settings import Verify
from tokscore.rendering.attribution.vocabulary_table import vocabulary_table

CONVERSATION = Conversation(
    [{"role": "user", "content": "hé 你好\n"}, {"role": "assistant", "content": "🎉 ok"}]
)


@pytest.fixture
def byt5(tmp_path: Path) -> Path:
    """A tokenizer written in Python, without offsets."""
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


class ZeroWidth:
    """A backend that gives every token an empty stretch of text."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return SimpleNamespace(ids=encoded.ids, offsets=[(0, 0)] * len(encoded.ids))


def test_a_slow_tokenizer_is_aligned_by_its_bytes(byt5: Path) -> None:
    tokenizer = ChatTokenizer(str(byt5))
    tokens = Renderer(tokenizer, verify=Verify.FULL).render(CONVERSATION)
    for message, content in enumerate(("hé 你好\n", "🎉 ok")):
        mine = tokens.token_ids[(tokens.message_indices == message) & tokens.is_content]
        assert b"".join(tokenizer.token_bytes.contents[i] or b"" for i in mine) == content.encode()
    assert vocabulary_table(tokenizer)["bytes"].to_pylist()[3:6] == [b"\x00", b"\x01", b"\x02"]
    assert tokenizer.identity() == ChatTokenizer(str(byt5)).identity()


def test_a_slow_tokenizer_that_does_not_spell_the_text_is_refused(
    byt5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import ByT5Tokenizer

    tokenize = ByT5Tokenizer._tokenize
    monkeypatch.setattr(ByT5Tokenizer, "_tokenize", lambda self, text: tokenize(self, text.lower()))
    with pytest.raises(InputError, match=r"slow tokenizer \(ByT5Tokenizer\) whose tokens do not spell"):
        ChatTokenizer(str(byt5))


def test_text_that_a_slow_tokenizer_changes_is_one_error(byt5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import ByT5Tokenizer

    renderer = Renderer(ChatTokenizer(str(byt5)))
    tokenize = ByT5Tokenizer._tokenize
    monkeypatch.setattr(ByT5Tokenizer, "_tokenize", lambda self, text: tokenize(self, text.replace("é", "e")))
    with pytest.raises(ConversationError, match="its tokens do not spell"):
        renderer.render(CONVERSATION)


def test_a_tokenizer_without_chat_templates_is_refused(byt5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import ByT5Tokenizer

    # As MistralCommonBackend, which builds requests itself.
    monkeypatch.setattr(ByT5Tokenizer, "apply_chat_template", lambda self, conversation, tools=None: [])
    with pytest.raises(InputError, match="loads as ByT5Tokenizer, which writes conversations without"):
        ChatTokenizer(str(byt5))


def test_zero_width_offsets_are_not_used_where_bytes_are_known(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Renderer(ChatTokenizer(str(tiny_model))).render(CONVERSATION)
    _with_zero_width_offsets(monkeypatch)
    tokens = Renderer(ChatTokenizer(str(tiny_model))).render(CONVERSATION)
    assert np.array_equal(tokens.message_indices, expected.message_indices)
    assert np.array_equal(tokens.is_content, expected.is_content)


def test_zero_width_offsets_are_refused_where_bytes_are_not_known(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_zero_width_offsets(monkeypatch)
    monkeypatch.setattr("tokscore.rendering.attribution.tokenizer.declared_decoder", lambda _config: None)
    with pytest.raises(
        InputError, match=r"no usable character offsets: .* no character, the last ends at 0 of 31"
    ):
        ChatTokenizer(str(tiny_model))


def _with_zero_width_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerFast

    backend = PreTrainedTokenizerFast.backend_tokenizer
    monkeypatch.setattr(
        PreTrainedTokenizerFast, "backend_tokenizer", property(lambda self: ZeroWidth(backend.fget(self)))
    )
