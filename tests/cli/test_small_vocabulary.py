"""Models with fewer ids than top-k lists have by default: all ids are listed, unless a length was given."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from tests.scoring.tiny_models import BASE, save
from tokscore.cli.app import app

pytest.importorskip("torch")
ALPHABET = [*string.ascii_letters, *string.digits, *",.:?!'-", "Ġ", "Ċ"]
SIZES = (len(ALPHABET), len(ALPHABET) + 6)
TEMPLATE = r"{% for m in messages %}{{ m.role + '\n' + m.content + '\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of 71 and 77 ids with one tokenizer."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE(vocab={character: i for i, character in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = []
    for size in SIZES:
        made.append(tmp_path_factory.mktemp("small"))
        save(made[-1], "LlamaForCausalLM", "LlamaConfig", **BASE | {"vocab_size": size})
        tokenizer.save(str(made[-1] / "tokenizer.json"))
        described = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
        (made[-1] / "tokenizer_config.json").write_text(json.dumps(described))
    return made


@pytest.fixture
def on(write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversation, and an empty cache."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    roles = {"user": "hi there", "asistant": "fine, thanks"}
    return write_jsonl({"messages": [{"role": role, "content": text} for role, text in roles.items()]})


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    finished = CliRunner().invoke(app, [*map(str, arguments), "--engine", "transformers"])
    if finished.exception is not None and not isinstance(finished.exception, SystemExit):
        return -1, finished.stdout, str(finished.exception)
    return finished.exit_code, finished.stdout, finished.stderr


@pytest.mark.slow
def test_lists_hold_all_ids_where_no_length_is_given(
    models: list[Path], on: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output, _ = run("diff", *models, "--on", on, "--format", "json")
    assert code == 0
    limits = json.loads(output)["total"]["gjs_0.5"]
    assert 0 < limits["lower"] == pytest.approx(limits["upper"], abs=1e-6)
    lists = [
        pl.read_parquet(part)["top_ids"].list.len().max()
        for part in (tmp_path / "cache/diff").glob("*/scores/*")
    ]
    assert {*lists} == {*SIZES}
    refused = run("diff", *models, "--on", on, "--top-k", "100")
    assert refused[0] != 0
    assert "expected 0 to 71" in refused[2]
    monkeypatch.setenv("TOKSCORE_LOGPROBS_TOP_K", "72")
    refused = run("logprobs", on, "-m", models[0], "-o", tmp_path / "scores")
    assert refused[0] != 0
    assert "expected 0 to 71" in refused[2]


def test_likely_mistakes_in_roles_are_said_where_conversations_are_scored(
    models: list[Path], on: Path, tmp_path: Path
) -> None:
    said = "warning: 1 message has a role that no chat format uses: asistant (1; assistant?)."
    code, _, notes = run("logprobs", on, "-m", models[0], "-o", tmp_path / "scores")
    assert code == 0
    assert notes.count(said) == 1
    for _ in range(2):
        code, _, notes = run("diff", *models, "--on", on)
        assert code == 0
        assert notes.count(said) == 1
