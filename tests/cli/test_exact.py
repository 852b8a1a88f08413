"""`tokscore diff --exact`: the values over the whole vocabulary, in every form of output."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.analytics.exact.pairs import Pair, score_pair, write_conversations
from tests.rewriting import rewrite
from tokscore.cli.app import app
from tokscore.dataset.errors import TokscoreError

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def pair(tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    return score_pair(folder, write_conversations(folder / "convs.jsonl"), tiny_model, other_tiny_model)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def models(pair: Pair) -> list[str | Path]:
    return ["--teacher-model", pair.teacher_model, "--student-model", pair.student_model]


def invoke(*arguments: str | Path) -> Any:
    """The finished command; what fails, raises."""
    finished = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    if isinstance(finished.exception, TokscoreError):
        raise finished.exception
    assert finished.exit_code == 0, finished.output
    return finished


def diff(*arguments: str | Path) -> Any:
    """The parsed output."""
    return json.loads(invoke(*arguments, "--format", "json").stdout)


@pytest.mark.parametrize(("column", "value"), [("token_id", 5), ("logprob", math.nan)])
def test_the_exact_values_leave_out_what_the_comparison_skipped(
    pair: Pair,
    tmp_path: Path,
    column: str,
    value: float,
) -> None:
    teacher = pair.teacher
    shutil.copytree(pair.student, tmp_path / "student")
    path = tmp_path / "student/scores/part-00000.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[table["conversation_id"].to_pylist().index("c5") + 3] = value
    index = table.column_names.index(column)
    field = table.schema.field(index)
    rewrite(table.set_column(index, field, pa.array(values, field.type)), path)
    whole = diff(pair.teacher, pair.student, *models(pair), "--exact", "--by", "conversation_id")
    arguments = [teacher, tmp_path / "student", *models(pair), "--exact", "--by", "conversation_id"]
    report = diff(*arguments, "--on-error", "skip")
    assert [each["conversation_id"] for each in report["skipped"]] == ["c5"]
    assert report["exact"]["total"]["n_tokens"] == report["total"]["n_tokens"]
    rows = [{row["group"]: row for row in each["exact"]["groups"]} for each in (whole, report)]
    # Groups are those of the teacher's dataset; c5 has no tokens here.
    assert rows[1].pop("c5", {"n_tokens": 0})["n_tokens"] == 0
    del rows[0]["c5"]
    assert rows[0] == rows[1]


def test_the_same_alpha_twice_is_one(pair: Pair) -> None:
    arguments = (pair.teacher, pair.student, *models(pair), "--exact", "--alpha", "0.3", "--alpha", "0.3")
    names = [name for name in diff(*arguments)["exact"]["total"] if name.startswith("gjs")]
    assert names == ["gjs_0.3"]
    table = invoke(*arguments).stdout.partition("Exact, 95 %")[2]
    (header,) = [line for line in table.splitlines()[1:] if "conversations" in line]
    assert header.split().count("GJS") == 1
