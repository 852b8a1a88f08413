"""render, logprobs, stats and diff one after the other, from outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from tokscore.dataset import schema as tables

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RECORDS = [
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]},
    {
        "messages": [
            {"role": "user", "content": "Name a fish."},
            {"role": "assistant", "content": "A carp, or a tench."},
        ]
    },
    {"messages": [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "🎉 hello"}]},
]


class Chain:
    """The datasets of one run of the chain on two tiny models."""

    def __init__(self, folder: Path) -> None:
        self.conversations = folder / "convs.jsonl"
        self.tokens = folder / "tokens"
        self.teacher = folder / "teacher"
        self.student = folder / "student"
        self.from_jsonl = folder / "from-jsonl"


@pytest.fixture(scope="module")
def chain(
    tokscore: Run, tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Chain:
    made = Chain(tmp_path_factory.mktemp("chain"))
    made.conversations.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    for arguments in (
        ("render", made.conversations, "-m", tiny_model, "-o", made.tokens),
        ("logprobs", made.tokens, "-m", tiny_model, "-o", made.teacher, "--top-k", "5"),
        ("logprobs", made.tokens, "-m", other_tiny_model, "-o", made.student, "--top-k", "5"),
        ("logprobs", made.conversations, "-m", tiny_model, "-o", made.from_jsonl, "--top-k", "5"),
    ):
        finished = tokscore(*arguments)
        assert finished.returncode == 0, finished.stderr
        assert finished.stderr.endswith(f"wrote {arguments[5]}\n")
    return made


def diff(tokscore: Run, *arguments: str | Path) -> Any:
    finished = tokscore("diff", *arguments, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_score_tables_have_the_documented_columns(chain: Chain) -> None:
    found = pq.read_schema(chain.teacher / "scores" / "part-00000.parquet")
    assert found.equals(tables.SCORES)
    metadata = {key.decode(): value.decode() for key, value in found.metadata.items()}
    assert metadata["tokscore.top_k"] == "5"
    assert metadata["tokscore.model"] == "tiny"
    assert metadata["tokscore.dtype"] == "float32"


def test_scores_open_in_polars_duckdb_and_pandas(chain: Chain) -> None:
    frame = pl.read_parquet(chain.teacher / "scores/*.parquet")
    assert frame.schema["logprob"] == pl.Float32
    assert frame.schema["top_ids"] == pl.List(pl.Int32)
    counted = duckdb.sql(
        f"select count(*), count(logprob), sum(len(top_ids)) from '{chain.teacher}/scores/*.parquet'"
    ).fetchall()
    n_scored = frame["logprob"].count()
    assert counted == [(frame.height, n_scored, 5 * n_scored)]
    loaded = pd.read_parquet(chain.teacher / "scores")
    assert str(loaded["logprob"].dtype) == "float32"
    assert len(loaded) == frame.height


def test_only_the_first_token_of_a_conversation_has_no_logprob(chain: Chain) -> None:
    frame = pl.read_parquet(chain.teacher / "scores/*.parquet")
    assert frame.filter(pl.col("logprob").is_null())["position"].to_list() == [0, 0, 0]
    assert frame.filter(pl.col("position") > 0)["logprob"].max() < 0


def test_a_token_dataset_and_its_conversations_get_the_same_scores(chain: Chain) -> None:
    frames = [pl.read_parquet(folder / "scores/*.parquet") for folder in (chain.teacher, chain.from_jsonl)]
    assert frames[0].equals(frames[1])


@pytest.mark.slow
def test_a_dataset_with_itself_differs_by_exactly_nothing(tokscore: Run, chain: Chain) -> None:
    report = diff(tokscore, chain.teacher, chain.teacher)
    for row in [*report["groups"], report["total"]]:
        for name in ("kl_teacher_student", "kl_student_teacher", "gjs_0.5"):
            assert row[name] == {"lower": 0.0, "upper": 0.0, "n_unbounded": 0, "unbounded": False}
        assert row["log_ratio"] == 0.0
        assert row["top1_agreement"] == 1.0
        assert row["teacher_logprob"] == row["student_logprob"]


def test_upper_limits_stay_where_the_same_run_is_not_proven(tokscore: Run, chain: Chain) -> None:
    report = diff(tokscore, chain.teacher, chain.from_jsonl)
    total = report["total"]
    assert not report["is_self"]
    assert total["gjs_0.5"]["lower"] == total["log_ratio"] == 0.0
    assert total["gjs_0.5"]["upper"] > 0
    assert total["kl_teacher_student"]["unbounded"]


def test_two_models_differ_by_role(tokscore: Run, chain: Chain) -> None:
    report = diff(tokscore, chain.teacher, chain.student)
    groups = {row["group"]: row for row in report["groups"]}
    assert set(groups) == {"system", "user", "assistant"}
    assistant = groups["assistant"]
    assert 0 < assistant["gjs_0.5"]["lower"] < assistant["gjs_0.5"]["upper"] <= 0.6931472
    for name in ("kl_teacher_student", "kl_student_teacher"):
        assert assistant[name]["lower"] > 0
        assert assistant[name]["upper"] is None
        assert assistant[name]["unbounded"]
    assert sum(row["n_tokens"] for row in report["groups"]) == report["total"]["n_tokens"]


def test_mean_logprobs_of_diff_are_those_of_stats_and_of_the_table(tokscore: Run, chain: Chain) -> None:
    report = diff(tokscore, chain.teacher, chain.student)
    counted = json.loads(tokscore("stats", chain.teacher, "--format", "json").stdout)
    frame = (
        pl.read_parquet(chain.teacher / "scores/*.parquet")
        .group_by("role")
        .agg(pl.col("logprob").cast(pl.Float64).mean())
    )
    expected = dict(frame.iter_rows())
    for row in report["groups"]:
        assert row["teacher_logprob"] == pytest.approx(expected[row["group"]], abs=1e-6)
    for row in counted["groups"]:
        assert row["mean_logprob"] == pytest.approx(expected[row["group"]], abs=1e-6)


@pytest.mark.slow
def test_csv_and_table_hold_the_same_groups(tokscore: Run, chain: Chain) -> None:
    csv = tokscore("diff", chain.teacher, chain.student, "--format", "csv").stdout.splitlines()
    assert [line.split(",")[0] for line in csv] == ["group", "assistant", "system", "user", "(all)"]
    table = tokscore("diff", chain.teacher, chain.student).stdout
    assert "unbounded]" in table
    assert all(name in table for name in ("assistant", "KL(T||S)", "GJS 0.5", "same top-1"))


def test_a_second_run_does_nothing_and_prints_the_same(tokscore: Run, chain: Chain, tiny_model: Path) -> None:
    part = chain.teacher / "scores" / "part-00000.parquet"
    before = part.stat().st_mtime_ns
    again = tokscore("logprobs", chain.tokens, "-m", tiny_model, "-o", chain.teacher, "--top-k", "5")
    assert again.returncode == 0
    assert "was complete already, there was nothing to do." in again.stderr
    assert part.stat().st_mtime_ns == before
    assert "assistant" in again.stdout


def test_other_settings_in_the_same_directory_are_refused(
    tokscore: Run, chain: Chain, tiny_model: Path
) -> None:
    refused = tokscore("logprobs", chain.tokens, "-m", tiny_model, "-o", chain.teacher, "--top-k", "6")
    assert refused.returncode == 2
    assert "holds another run: --top-k is 5 there and 6 here" in refused.stderr


@pytest.mark.slow
def test_a_model_scores_the_tokens_of_another_models_scores(
    tokscore: Run, chain: Chain, other_tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "student"
    finished = tokscore("logprobs", chain.teacher, "-m", other_tiny_model, "-o", out, "--top-k", "5")
    assert finished.returncode == 0, finished.stderr
    ours, theirs = (pq.read_table(root / "scores") for root in (out, chain.student))
    assert ours.equals(theirs)
    ours, theirs = (json.loads((root / "manifest.json").read_text()) for root in (out, chain.student))
    assert ours["settings"] == theirs["settings"]
    kept = tmp_path / "kept.jsonl"
    finished = tokscore("select", out, chain.conversations, "--where", "n_tokens > 0", "-o", kept)
    assert finished.returncode == 0, finished.stderr
    assert kept.read_bytes() == chain.conversations.read_bytes()
