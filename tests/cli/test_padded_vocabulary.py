"""Ids that only pad a model's vocabulary: one that was sampled is scored, one beyond is refused."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from tests.conftest import make_tiny_model
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError
from tokscore.rendering import load_tokens

PADDED = 272


@pytest.fixture(scope="module")
def padded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    path = make_tiny_model(tmp_path_factory.mktemp("padded"), seed=0)
    model = AutoModelForCausalLM.from_pretrained(path)
    model.resize_token_embeddings(PADDED)
    model.save_pretrained(path)
    return path


def run(*arguments: object) -> str:
    finished = CliRunner().invoke(app, [str(each) for each in arguments])
    if finished.exception is not None:
        raise finished.exception
    return finished.stdout


def verifiers(token_id: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "A"}]
    prompt = [257, *b"user\nhi", 258, 10, 257, *b"assistant\n"]
    return {
        "id": "c",
        "prompt": messages[:1],
        "completion": messages[1:],
        "nodes": [
            {
                "parent": None,
                "message": messages[0],
                "token_ids": prompt,
                "mask": [False] * len(prompt),
                "logprobs": [],
                "sampled": False,
            },
            {
                "parent": 0,
                "message": messages[1],
                "token_ids": [65, token_id, 258],
                "mask": [True] * 3,
                "logprobs": [-1.0] * 3,
                "sampled": True,
            },
        ],
    }


def tokens(token_id: int) -> dict[str, object]:
    return {
        "id": "c",
        "prompt_token_ids": [257, 72, 105],
        "completion_token_ids": [65, token_id, 258],
        "mask": [False] * 3 + [True] * 3,
        "roles": [["user", 3, 0], ["assistant", 3, 1]],
        "is_content": [True] * 6,
    }


@pytest.mark.parametrize("record", [tokens, verifiers])
def test_a_sampled_id_of_the_padding_has_the_logprob_of_the_model(
    padded_model: Path, tmp_path: Path, record: object
) -> None:
    from transformers import AutoModelForCausalLM

    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(record(265)) + "\n")  # type: ignore[operator]
    run("logprobs", path, "-m", padded_model, "-o", tmp_path / "scores", "--engine", "transformers")
    rows = pl.read_parquet(tmp_path / "scores/scores/*.parquet").sort("position")
    [row] = rows.filter(pl.col("token_id") == 265).to_dicts()
    assert (row["role"], row["is_sampled"]) == ("assistant", True)
    ids = torch.tensor([rows["token_id"].to_list()])
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(padded_model)(ids).logits[0].double()
    expected = logits.log_softmax(-1)[row["position"] - 1, 265].item()
    assert row["logprob"] == pytest.approx(expected, abs=2e-5)
    assert "[id 265]" in run("show", tmp_path / "scores", "c")
    # Scored once more from a token dataset.
    run("render", path, "-m", padded_model, "-o", tmp_path / "tokens")
    assert load_tokens(tmp_path / "tokens")["token_id"].to_list() == rows["token_id"].to_list()
    run(
        "logprobs",
        tmp_path / "tokens",
        "-m",
        padded_model,
        "-o",
        tmp_path / "again",
        "--engine",
        "transformers",
    )
    again = pl.read_parquet(tmp_path / "again/scores/*.parquet").sort("position")
    assert again["logprob"].to_list() == pytest.approx(rows["logprob"].to_list(), nan_ok=True)


def test_an_id_beyond_the_padding_is_refused(padded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(tokens(PADDED)) + "\n")
    with pytest.raises(InputError, match=f"is the token id {PADDED}; expected 0 to {PADDED - 1}"):
        run("render", path, "-m", padded_model, "-o", tmp_path / "tokens")


def test_a_vocabulary_size_that_cannot_be_pads_nothing(tiny_model: Path, tmp_path: Path) -> None:
    import shutil

    model = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 2**40}))
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(tokens(265)) + "\n")
    with pytest.raises(InputError, match="is the token id 265; expected 0 to 258"):
        run("render", path, "-m", model, "-o", tmp_path / "tokens")
