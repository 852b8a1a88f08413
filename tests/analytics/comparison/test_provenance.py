"""Notes beside a comparison whose numbers do not say what they look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rewriting import rewrite
from tokscore.cli.app import app

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import


@pytest.fixture
def ours(conversation: Make) -> list[Any]:
    return [conversation(f"c{i}", [("user", 5), ("assistant", 7)], seed=i) for i in range(3)]


def run(*arguments: object) -> Any:
    finished = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    assert finished.exit_code == 0, finished.exception
    return finished


@pytest.mark.parametrize(
    ("teacher", "student", "is_noted"),
    [("a" * 64, "a" * 64, True), ("a" * 64, "b" * 64, False), (None, None, False)],
)
def test_equal_weights_on_both_sides_are_noted(
    ours: list[Any], write_dataset: Make, teacher: str | None, student: str | None, is_noted: bool
) -> None:
    sides = [write_dataset(ours, model={"sha256": sha}) for sha in (teacher, student)]
    assert ("both sides have the same weights" in run("diff", *sides).stderr) is is_noted


@pytest.mark.parametrize(
    ("change", "is_noted"),
    [({}, False), ({"model": "other"}, True), ({"dtype": "float16"}, True), (None, False)],
)
def test_the_noise_floor_of_another_model_is_noted(
    ours: list[Any], write_dataset: Make, tmp_path: Path, change: dict[str, str] | None, is_noted: bool
) -> None:
    sides = [write_dataset(ours), write_dataset(ours, top_k=3)]
    model = json.loads((sides[0] / "manifest.json").read_text())["model"]
    floor: dict[str, object] = {"noise_floor": {"mean": 1e-6, "p99": 1e-5, "max": 1e-4}}
    if change is not None:
        floor |= {"model": model["name"], "engine": model["engine"], "dtype": model["dtype"]} | change
    (tmp_path / "floor.json").write_text(json.dumps(floor))
    found = run("diff", *sides, "--noise-floor", tmp_path / "floor.json")
    assert ("it says nothing about them" in found.stderr) is is_noted


def with_column(root: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    path = root / "scores/part-00000.parquet"
    table = pq.read_table(path)
    index = table.column_names.index(name)
    field = table.schema.field(index)
    values = pa.array(change(table[name].to_pylist()), field.type)
    rewrite(table.set_column(index, field, values), path)


@pytest.mark.parametrize(("value", "is_noted"), [(0.0, True), (-1.0, False)])
def test_recorded_logprobs_that_are_all_0_are_noted(
    ours: list[Any], write_dataset: Make, value: float, is_noted: bool
) -> None:
    root = write_dataset(ours)
    with_column(root, "recorded_logprob", lambda values: [value] * len(values))
    assert ("every recorded logprob is 0" in run("diff", "--recorded", root).stderr) is is_noted


def test_a_list_that_ends_in_minus_infinity_is_compared(ours: list[Any], write_dataset: Make) -> None:
    sides = [write_dataset(ours), write_dataset(ours)]
    before = json.loads(run("diff", *sides).stdout)["total"]

    lists = pq.read_table(sides[1] / "scores/part-00000.parquet")["top_logprobs"].to_pylist()
    ids = pq.read_table(sides[1] / "scores/part-00000.parquet")
    first = ids["top_ids"].to_pylist()[3][0]
    certain = [0.0] + [-np.inf] * (len(lists[3]) - 1)
    is_first = ids["token_id"].to_pylist()[3] == first
    with_column(sides[1], "top_logprobs", lambda lists: [*lists[:3], certain, *lists[4:]])
    with_column(sides[1], "logprob", lambda values: [*values[:3], 0.0 if is_first else -np.inf, *values[4:]])
    after = json.loads(run("diff", *sides).stdout)["total"]
    assert after["n_tokens"] == before["n_tokens"]
    assert 0 < after["gjs_0.5"]["lower"] <= after["gjs_0.5"]["upper"] <= np.log(2)
    assert after["kl_teacher_student"]["lower"] is None  # infinite: the teacher allows what is ruled out
