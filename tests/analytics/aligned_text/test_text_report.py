"""Datasets of two real tokenizers, compared by their text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tokscore.analytics import diff_report, text_report
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.manifest import Manifest, ModelIdentity
from tokscore.dataset.resuming import write_vocabulary
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import RenderedConversation
from tokscore.dataset.writing import PartWriter
from tokscore.rendering.inputs import open_source
from tokscore.scoring import SequenceScores
from tokscore.scoring.columns import ScoredTokens, score_columns

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# The text is stripped, and its last characters may share a token with the line break.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
MESSAGES = [
    {"role": "system", "content": "Antworte kurz. \u4f60\u597d, \U0001f389\U0001f468\u200d\U0001f469!"},
    {"role": "user", "content": "What is 12345 * 67?\n\n\tdef f(x):\n        return x"},
    {"role": "assistant", "content": "It is 827115: na\u00efve, \u0928\u092e\u0938\u094d\u0924\u0947."},
]
RECORDS = [{"id": f"c{n}", "messages": MESSAGES[n % 2 :]} for n in range(3)]
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """A dataset of a tokenizer, with made-up logprobs; the same one for the same arguments."""
    folder = tmp_path_factory.mktemp("datasets")

    @cache
    def written(model: Path, template: str, seed: int, records: str) -> Path:
        root = folder / f"dataset{len(list(folder.glob('dataset*')))}"
        for name, text in (("t.jinja", template), ("convs.jsonl", records)):
            (folder / name).write_text(text)
        source = open_source([str(folder / "convs.jsonl")], str(model), template=folder / "t.jinja")
        rng = np.random.default_rng(seed)
        identity = ModelIdentity(str(seed), None, None, source.tokenizer.vocab_size, "float32", "e", "1")
        manifest = Manifest(
            kind=DatasetKind.SCORES,
            tokscore_version="0",
            settings={"temperature": 1.0, "top_k": 0},
            tokenizer=source.tokenizer,
            model=identity,
            inputs=list(source.inputs),
            parts=list(source.parts),
        ).sealed()
        root.mkdir()
        (root / "manifest.json").write_bytes(manifest.to_json())
        write_vocabulary(root, source.vocabulary())
        for part in source.parts:
            with PartWriter(root, manifest, part.index, score_columns) as writer:
                for item in source.read(part):
                    assert isinstance(item, RenderedConversation)
                    writer.add(item, ScoredTokens(len(item.tokens), made_up(len(item.tokens) - 1, rng)))
                writer.finish()
        return root

    def write(model: Path, template: str = CHATML, *, seed: int = 0, records: list[Any] = RECORDS) -> Path:
        return written(model, template, seed, "".join(json.dumps(each) + "\n" for each in records))

    return write


def made_up(n: int, rng: np.random.Generator) -> SequenceScores:
    no_lists = np.zeros((n, 0))
    logprobs = -rng.exponential(2, n).astype(np.float32)
    return SequenceScores(logprobs, None, no_lists.astype(np.int32), no_lists.astype(np.float32), None)


def tokens(root: Path) -> pl.DataFrame:
    return pl.read_parquet(root / "scores/*.parquet")


@pytest.mark.slow
def test_spans_tile_every_message_and_add_up_to_its_sums(
    write: Write, teacher_model: Path, qwen3: Path, tmp_path: Path
) -> None:
    sides = {"teacher": write(teacher_model), "student": write(qwen3, seed=1)}
    report = text_report(*sides.values(), by="role,message_index", out=tmp_path / "out")
    spans = pl.read_parquet(tmp_path / "out" / "spans.parquet")
    assert len(spans) == report.total.n_spans
    assert (
        report.total.n_unscored_spans == report.total.n_teacher_unaligned == report.n_student_unaligned == 0
    )
    assert not report.differing
    for (name, message), found in spans.group_by("conversation_id", "message_index"):
        record = next(each for each in RECORDS if each["id"] == name)
        text = record["messages"][message]["content"]
        assert found["n_characters"].sum() == len(text)
        assert found["n_bytes"].sum() == len(text.encode())
        for side, root in sides.items():
            own = tokens(root).filter(conversation_id=name, message_index=message, is_content=True)
            assert found[f"n_{side}_tokens"].sum() == len(own)
            positions = [
                at
                for start, stop in found.select(f"{side}_start", f"{side}_stop").iter_rows()
                for at in range(start, stop)
            ]
            assert positions == own["position"].to_list()
            total = own["logprob"].cast(pl.Float64).sum()
            assert found[f"{side}_logprob"].sum() == pytest.approx(total, abs=1e-6)
    # Two tokenizers differ somewhere, and agree somewhere.
    assert 0 < report.total.share_one_to_one < 1
    content = {side: tokens(root).filter(is_content=True) for side, root in sides.items()}
    n_bytes = sum(len(each["content"].encode()) for record in RECORDS for each in record["messages"])
    for side, found in (
        ("teacher", report.total.teacher_bits_per_byte),
        ("student", report.total.student_bits_per_byte),
    ):
        by_hand = -content[side]["logprob"].cast(pl.Float64).sum() / math.log(2) / n_bytes
        assert found == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.slow
def test_equal_tokenizers_give_the_comparison_by_tokens(
    write: Write, teacher_model: Path, tmp_path: Path
) -> None:
    ascii_only = [{"id": "c", "messages": [{"role": "user", "content": "What is 12345 * 67? " * 9}]}]
    one, other = (write(teacher_model, seed=seed, records=ascii_only) for seed in range(2))
    by_text = text_report(one, other, out=tmp_path / "out")
    spans = pl.read_parquet(tmp_path / "out" / "spans.parquet")
    own, others = (tokens(root).filter(is_content=True) for root in (one, other))
    assert by_text.total.share_one_to_one == 1
    assert spans["teacher_start"].to_list() == spans["student_start"].to_list() == own["position"].to_list()
    for side, frame in (("teacher", own), ("student", others)):
        assert spans[f"{side}_logprob"].to_list() == frame["logprob"].cast(pl.Float64).to_list()
    by_tokens = diff_report(one, other, align="content")
    assert by_text.total.log_ratio_per_span == pytest.approx(by_tokens.total.log_ratio, abs=1e-12)


@pytest.mark.slow
def test_tokens_that_share_text_with_a_template_are_counted(
    write: Write, teacher_model: Path, qwen3: Path
) -> None:
    records = [{"id": "c", "messages": [{"role": "user", "content": " spaces before, and none behind."}]}]
    report = text_report(write(teacher_model, records=records), write(qwen3, PLAIN, records=records))
    total, n_student = report.total, report.n_student_unaligned
    assert total.n_spans > 0
    assert total.n_teacher_unaligned + n_student > 0
    assert total.n_teacher_tokens + total.n_teacher_unaligned == total.n_tokens


@pytest.mark.slow
def test_a_message_with_other_text_is_named(write: Write, teacher_model: Path, qwen3: Path) -> None:
    changed = json.loads(json.dumps(RECORDS))
    changed[1]["messages"][1]["content"] = "Nothing of that was said here!"
    arguments = [write(teacher_model), write(qwen3, records=changed)]
    report = text_report(*arguments)
    assert [each[:3] for each in report.differing] == [("c1", 0, 1)]
    done = CliRunner().invoke(app, ["diff", *map(str, arguments), "--align", "text"])
    assert done.exit_code == 0, done.output
    assert "content of message 1 of conversation 'c1', whose text differs" in done.stderr


def test_groups_without_spans_are_named_and_no_more_are_left_out(
    write: Write, teacher_model: Path, qwen3: Path
) -> None:
    changed = json.loads(json.dumps(RECORDS))
    for record in changed:
        for message in record["messages"]:
            if message["role"] == "system":
                message["content"] = "Something else."
    sides = [str(write(teacher_model)), str(write(qwen3, records=changed))]
    done = CliRunner().invoke(app, ["diff", *sides, "--align", "text", "--top", "2"])
    assert done.exit_code == 0, done.output
    assert "left out, without values: 1 group (system)" in done.stderr
    assert "more (--top" not in done.stderr


def test_the_command_prints_groups_and_keeps_conditions(
    write: Write, teacher_model: Path, qwen3: Path, tmp_path: Path
) -> None:
    sides = [str(write(teacher_model)), str(write(qwen3, seed=1))]
    out = tmp_path / "out"
    command = ["diff", *sides, "--align", "text", "--format", "json", "-o", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["group"] for row in found["groups"]] == ["assistant", "system", "user"]
    assert found["total"] == text_report(*sides).to_dict()["total"]
    assert {path.name for path in out.iterdir()} == {"spans.parquet", "groups.parquet"}
    gated = CliRunner().invoke(
        app, ["diff", *sides, "--align", "text", "--fail-if", "role=user: teacher_bits_per_byte > 0.1"]
    )
    assert gated.exit_code == 1
    table = CliRunner().invoke(app, ["diff", *sides, "--align", "text"])
    assert "bits/byte" in table.stdout


@pytest.mark.slow
def test_datasets_without_common_text_are_refused(write: Write, teacher_model: Path, qwen3: Path) -> None:
    one = [{"id": "c", "messages": [{"role": "user", "content": "One."}]}]
    other = [{"id": "c", "messages": [{"role": "user", "content": "two"}]}]
    with pytest.raises(InputError, match="have no text in common"):
        text_report(write(teacher_model, records=one), write(qwen3, records=other))


def test_what_needs_equal_tokens_is_refused() -> None:
    for options in (["--exact"], ["--alpha", "0.1"], ["--html", "x.html"], ["--sampled-by", "student"]):
        done = CliRunner().invoke(app, ["diff", "a", "b", "--align", "text", *options])
        assert isinstance(done.exception, UsageError)
        assert "--align text compares spans of text" in str(done.exception)
    with pytest.raises(UsageError, match="text_report"):
        diff_report("a", "b", align="text")
