"""A tokenizer loaded by the class that AutoTokenizer chose before is the one that AutoTokenizer gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_tiny_model
from tokscore.rendering import ChatTokenizer, InputError
from tokscore.rendering.libraries.remembered import remembered_file
from tokscore.rendering.tokenizers import loading
from tokscore.rendering.tokenizers.class_choice import FILE, remembered_class

NAMES = ("deepseek_v3", "gemma3", "gptoss", "llama3_1", "qwen3")
TEMPLATE = "{{ messages }}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))


def without_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail where AutoTokenizer is asked."""
    from transformers import AutoTokenizer

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("AutoTokenizer was asked")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)


@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in NAMES[1:])]
)
def test_the_tokenizer_is_the_same(assets: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(assets / "tokenizers" / name)
    by_auto = ChatTokenizer(model, template=TEMPLATE)
    without_auto(monkeypatch)
    by_class = ChatTokenizer(model, template=TEMPLATE)
    assert type(by_class.hf) is type(by_auto.hf) is remembered_class(model)
    assert by_class.hf.backend_tokenizer.to_str() == by_auto.hf.backend_tokenizer.to_str()
    assert by_class.hf.init_kwargs == by_auto.hf.init_kwargs
    assert by_class.hf.special_tokens_map == by_auto.hf.special_tokens_map
    assert by_class.hf.chat_template == by_auto.hf.chat_template
    assert by_class.hf.name_or_path == by_auto.hf.name_or_path
    assert by_class.hf.model_max_length == by_auto.hf.model_max_length
    assert (by_class.eos_ids, by_class.special_ids) == (by_auto.eos_ids, by_auto.special_ids)
    assert by_class.opening_ids == by_auto.opening_ids
    assert by_class.identity() == by_auto.identity()


def test_other_files_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny_model(tmp_path / "model", seed=0)
    ChatTokenizer(str(model))
    assert remembered_class(str(model)) is not None
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "Qwen2Tokenizer"}))
    assert remembered_class(str(model)) is None
    assert type(ChatTokenizer(str(model)).hf).__name__ == "Qwen2Tokenizer"


def test_what_is_remembered_is_only_a_class_of_transformers(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path / "model", seed=0))
    ChatTokenizer(model)
    known = json.loads(remembered_file(FILE).read_text())
    for name in ("os:system", "transformers.nothing:Here", "transformers.utils:missing_name", 1):
        remembered_file(FILE).write_text(json.dumps(dict.fromkeys(known, name)))
        assert remembered_class(model) is None
    for text in ("", "[]", "{", "\x00"):
        remembered_file(FILE).write_text(text)
        assert remembered_class(model) is None
    assert ChatTokenizer(model).token_ids(["Hi"])[0].tolist() == [39, 72]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "file"))
    model = str(make_tiny_model(tmp_path / "model", seed=0))
    assert ChatTokenizer(model).token_ids(["Hi"])[0].tolist() == [39, 72]
    assert remembered_class(model) is None


def test_a_tokenizer_that_broke_since_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny_model(tmp_path / "model", seed=0)
    ChatTokenizer(str(model))
    monkeypatch.setattr(loading, "remembered_class", lambda _model: dict)
    assert ChatTokenizer(str(model)).token_ids(["Hi"])[0].tolist() == [39, 72]
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="holds no tokenizer that can be loaded"):
        ChatTokenizer(str(model))
