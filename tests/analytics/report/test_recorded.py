"""Recorded logprobs beside scored ones: in `show`, on the page of one dataset, and on that of a mismatch."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rewriting import rewrite
from tokscore.analytics import mismatch
from tokscore.analytics.report import write_mismatch_report, write_stats_report
from tokscore.analytics.report.reading import find_scored, has_recorded, open_scores
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError

SAMPLES = (
    ("near", (("user", (1, 2, 3, 15)), ("assistant", tuple(range(16, 34))), ("tool", (9, 10, 12)))),
    ("far", (("user", (4, 5)), ("assistant", (20, 21, 22, 23)))),
)


@pytest.fixture(scope="module")
def recorded(write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two conversations whose sampled tokens carry logprobs; those of the second are further off."""
    root = write_scores(tmp_path_factory.mktemp("recorded") / "scores", SAMPLES)
    path = root / "scores/part-00000.parquet"
    table = pq.read_table(path)
    rng = np.random.default_rng(0)
    values = []
    for row in table.select(["conversation_id", "is_sampled", "logprob"]).to_pylist():
        size = 1.5 if row["conversation_id"] == "far" else 0.1
        values.append(min(row["logprob"] + rng.normal(0, size), 0.0) if row["is_sampled"] else None)
    index = table.column_names.index("recorded_logprob")
    column = pa.array(values, pa.float32())
    rewrite(table.set_column(index, table.schema.field(index), column), path)
    return root


def rows_of(root: Path, conversation_id: str) -> pl.DataFrame:
    frame = pl.read_parquet(root / "scores/part-00000.parquet")
    return frame.filter(pl.col("conversation_id") == conversation_id)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_show_gives_both_logprobs_of_every_token(recorded: Path) -> None:
    expected = rows_of(recorded, "far")
    found = run("show", recorded, "far", "--metric", "recorded", "--format", "json")
    tokens = json.loads(found.stdout)["tokens"]
    for token, row in zip(tokens, expected.iter_rows(named=True), strict=True):
        assert token["recorded_logprob"] == row["recorded_logprob"]
        gap = None if row["recorded_logprob"] is None else row["logprob"] - row["recorded_logprob"]
        assert token["recorded_gap"] == gap
    message = json.loads(found.stdout)["messages"][-1]
    known = expected.filter(pl.col("recorded_logprob").is_not_null()).cast(
        {"logprob": pl.Float64, "recorded_logprob": pl.Float64}
    )
    assert message["recorded_logprob"] == pytest.approx(known["recorded_logprob"].mean())
    assert message["recorded_gap"] == pytest.approx((known["logprob"] - known["recorded_logprob"]).mean())
    rows = [*csv.DictReader(io.StringIO(run("show", recorded, "far", "--format", "csv").stdout))]
    assert [row["recorded_logprob"] for row in rows[:3]] == ["", "", ""]


def test_show_prints_a_line_for_each_recorded_token(recorded: Path) -> None:
    shown = run("show", recorded, "far", "--metric", "recorded").stdout
    assert "scored - recorded; raised digits: scored is higher" in shown
    for row in rows_of(recorded, "far").filter(pl.col("recorded_logprob").is_not_null()).to_dicts():
        numbers = (row["recorded_logprob"], row["logprob"], row["logprob"] - row["recorded_logprob"])
        line = r"\s+".join([str(row["position"]), r"\S+", *(re.escape(f"{x:.4f}") for x in numbers)])
        assert re.search(rf"^\s*{line}\s+{row['rank']}\s*$", shown, re.MULTILINE), line


def test_show_of_what_carries_none_is_refused(write_scores: Callable[..., Path], tmp_path: Path) -> None:
    plain = write_scores(tmp_path / "plain", SAMPLES)
    assert not has_recorded(open_scores(plain))
    found = run("show", plain, "far", "--metric", "recorded")
    assert isinstance(found.exception, InputError)
    assert "carries no recorded logprobs" in str(found.exception)
    assert "recorded" not in run("show", plain, "far", "--format", "csv").stdout


def page_json(path: Path, name: str) -> Any:
    text = path.read_text(encoding="utf-8")
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_of_one_dataset_shows_what_was_recorded(
    recorded: Path, tmp_path: Path, write_scores: Callable[..., Path]
) -> None:
    write_stats_report(recorded, tmp_path / "page.html")
    assert page_json(tmp_path / "page.html", "report")["metrics"] == [
        "logprob",
        "rank",
        "entropy",
        "recorded",
    ]
    columns = {name: n for name, _, n in page_json(tmp_path / "page.html", "c0")["columns"]}
    assert columns["recorded"] == columns["logprob"]
    write_stats_report(write_scores(tmp_path / "plain", SAMPLES), tmp_path / "plain.html")
    assert page_json(tmp_path / "plain.html", "report")["metrics"] == ["logprob", "rank", "entropy"]


def test_the_page_of_a_mismatch_has_the_numbers_of_the_report(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    found = run("diff", "--recorded", recorded, "--html", path)
    assert found.exit_code == 0, found.output
    assert "2 conversations token by token" in found.stderr
    total, page = mismatch(recorded).total, path.read_text(encoding="utf-8")
    for number in (
        total.mismatch_kl.k1,
        total.mismatch_kl.k3,
        total.off_policy.effective_sample_size,
        total.log_ratio,
    ):
        assert number is not None
        assert f"<td>{number:.6f}" in page
    report = page_json(path, "report")
    assert report["metrics"][0] == "recorded"
    assert [row["id"] for row in report["conversations"]] == ["far", "near"]
    mean = {row["id"]: row["means"]["recorded"] for row in report["conversations"]}
    gaps = find_scored(open_scores(recorded), "far")
    assert gaps.recorded is not None
    expected = np.nanmean(gaps.teacher.logprobs - gaps.recorded)
    assert mean["far"] == pytest.approx(expected, rel=1e-5)


def test_a_page_of_a_conversation_that_is_none_leaves_it_out(recorded: Path, tmp_path: Path) -> None:
    table = pq.read_table(recorded / "scores/part-00000.parquet")
    bad = tmp_path / "bad"
    shutil.copytree(recorded, bad)
    index = table.column_names.index("recorded_logprob")
    values = table["recorded_logprob"].to_pylist()
    values[-1] = 0.5
    column = pa.array(values, pa.float32())
    rewrite(table.set_column(index, table.schema.field(index), column), bad / "scores/part-00000.parquet")
    with pytest.raises(InputError, match=r"the recorded logprob is 0\.5"):
        write_mismatch_report(bad, tmp_path / "page.html")
    size = write_mismatch_report(bad, tmp_path / "page.html", on_error="skip")
    assert (size.n_conversations, size.n_kept) == (1, 1)


def test_a_page_needs_scores(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    path.write_text(
        json.dumps(
            {
                "token_ids": [1, 2],
                "loss_mask": [False, True],
                "inference_logprobs": [0.0, -1.0],
                "trainer_logprobs": [0.0, -1.5],
            }
        )
    )
    found = run("diff", "--recorded", path, "--html", tmp_path / "page.html")
    assert isinstance(found.exception, UsageError)
    assert "--html shows recorded logprobs beside scored ones" in str(found.exception)
