"""`diff --align text` of a real model and one of another tokenizer, by the commands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unicodedata import normalize

import polars as pl
import pytest

from tests.conftest import EXAMPLES, RunTokscore

pytestmark = [pytest.mark.slow, pytest.mark.model]

SIDES = ("teacher", "student")
FIELD = ["conversation_id", "branch", "message_index", "source"]
MAX_LENGTH = 400


def with_tokenizer(folder: Path, tokenizer: Path, seed: int) -> Path:
    """A random model of the vocabulary of a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = [*content["model"]["vocab"].values(), *(each["id"] for each in content["added_tokens"])]
    torch.manual_seed(seed)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=max(ids) + 1,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=4_096,
            initializer_range=0.4,
        )
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scored(
    tokscore: RunTokscore, teacher_model: Path, assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The examples, scored by the real model and by random ones of two other tokenizers, each in its template."""
    folder = tmp_path_factory.mktemp("text")
    tokenizers = assets / "tokenizers"
    models = {"teacher": (teacher_model, ["--template", EXAMPLES / "chatml_tools.jinja"])} | {
        name: (with_tokenizer(folder / f"model-{name}", tokenizers / tokenizer, seed), [])
        for name, tokenizer, seed in (("qwen3", "qwen3", 0), ("other", "qwen3", 1), ("llama3", "llama3_1", 2))
    }
    for name, (model, options) in models.items():
        finished = tokscore(
            *("logprobs", EXAMPLES / "conversations.jsonl", "-m", model, "-o", folder / name, *options),
            *("--engine", "transformers", "--dtype", "float32", "--top-k", "5"),
            *("--max-length", str(MAX_LENGTH), "--on-error", "skip"),
        )
        assert finished.returncode == 0, finished.stderr
    return {name: folder / name for name in models}


def compared(tokscore: RunTokscore, one: Path, other: Path, *options: str | Path) -> dict[str, Any]:
    finished = tokscore("diff", one, other, *options, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.mark.parametrize("student", ["qwen3", "llama3"])
def test_spans_tile_messages_add_up_to_them_and_give_bits_per_byte(
    student: str, scored: dict[str, Path], tokscore: RunTokscore, tmp_path: Path
) -> None:
    found = compared(tokscore, scored["teacher"], scored[student], "--align", "text", "-o", tmp_path / "out")
    spans = pl.read_parquet(tmp_path / "out" / "spans.parquet")
    total = found["total"]
    assert len(spans) == total["n_spans"]
    assert found["n_conversations"] > 10
    assert 0 < total["share_one_to_one"] < 1
    n_unaligned = {"teacher": total["n_teacher_unaligned"], "student": found["n_student_unaligned"]}
    # Some conversations are too long in the tokens of one side alone.
    fields = [of_fields(scored[name]) for name in ("teacher", student)]
    shared = set.intersection(*({field[0] for field in each} for each in fields))
    assert len(shared) == found["n_conversations"]
    for side, own_fields in zip(SIDES, fields, strict=True):
        n_outside = n_tiled = 0
        for field, (positions, logprobs) in own_fields.items():
            if field[0] not in shared:
                continue
            own = spans.filter(**dict(zip(FIELD, field, strict=True)))
            bounds = own.select(f"{side}_start", f"{side}_stop").rows()
            inside = [at for start, stop in bounds for at in positions if start <= at < stop]
            assert inside == sorted(set(inside))
            assert own[f"n_{side}_tokens"].sum() == len(inside)
            by_position = dict(zip(positions, logprobs, strict=True))
            assert own[f"{side}_logprob"].sum() == pytest.approx(
                sum(by_position[at] for at in inside), abs=1e-6
            )
            n_outside += len(positions) - len(inside)
            n_tiled += inside == positions
            if inside and field[-1] != "tool_calls":
                # Without a gap: only tokens at the ends can hold characters of a template.
                first = positions.index(inside[0])
                assert inside == positions[first : first + len(inside)]
        assert n_outside == n_unaligned[side]
        assert n_tiled > 20
        by_hand = -spans[f"{side}_logprob"].sum() / math.log(2) / spans["n_bytes"].sum()
        assert total[f"{side}_bits_per_byte"] == pytest.approx(by_hand, rel=1e-9)
    # The text of the records themselves, where no template trims it and no tokenizer normalizes it.
    records = {
        record["id"]: record["messages"]
        for record in map(json.loads, (EXAMPLES / "conversations.jsonl").read_text("utf-8").splitlines())
    }
    users = spans.filter(pl.col("role") == "user", pl.col("source") == "content")
    for (name, message), own in users.group_by("conversation_id", "message_index"):
        text = records[str(name)][int(str(message))]["content"]
        if isinstance(text, str) and text == normalize("NFC", text.strip()):
            assert own["n_bytes"].sum() == len(text.encode())
            assert own["n_characters"].sum() == len(text)


def test_equal_tokenizers_give_the_comparison_by_tokens(
    scored: dict[str, Path], tokscore: RunTokscore
) -> None:
    sides = (scored["qwen3"], scored["other"])
    by_text = compared(tokscore, *sides, "--align", "text")
    by_tokens = compared(tokscore, *sides, "--align", "content")
    assert by_text["total"]["n_teacher_unaligned"] == by_text["n_student_unaligned"] == 0
    assert by_text["total"]["n_teacher_tokens"] == by_tokens["total"]["n_tokens"]
    assert by_text["total"]["log_ratio_per_teacher_token"] == pytest.approx(
        by_tokens["total"]["log_ratio"], abs=1e-12
    )
    assert by_text["total"]["list_overlap"] is not None


def of_fields(root: Path) -> dict[tuple[object, ...], tuple[list[int], list[float]]]:
    """Positions and logprobs of the content tokens of each field."""
    tokens = pl.read_parquet(root / "scores/*.parquet").filter("is_content")
    tokens = tokens.with_columns(pl.col("source").cast(pl.String), pl.col("logprob").cast(pl.Float64))
    grouped = tokens.group_by(FIELD, maintain_order=True).agg("position", "logprob")
    return {row[:4]: row[4:] for row in grouped.rows()}  # type: ignore[misc]
