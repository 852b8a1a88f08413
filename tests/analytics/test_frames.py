"""Statistics and comparisons from Python: what the commands print as JSON, as frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from tokscore.analytics import diff, stats
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
ROLES = [("system", 0), ("user", 4), ("assistant", 6), ("user", 2)]


@pytest.fixture
def datasets(conversation: Make, write_dataset: Make) -> tuple[Path, Path]:
    """The scores of two models."""
    teacher, student = (
        [conversation(f"c{n}", ROLES[: 2 + n % 3], seed=n, model=model) for n in range(5)] for model in (0, 1)
    )
    return write_dataset(teacher), write_dataset(student, n_parts=2)


def printed(*arguments: str | Path) -> dict[str, Any]:
    """The JSON that a command prints."""
    finished = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    assert finished.exit_code == 0, finished.output
    return json.loads(finished.stdout)


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float | None]]:
    """Every number and boolean in JSON by its dotted name, but for what `n_unbounded` says."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{name}.{key}" if name else key)
    elif not name.endswith(".unbounded") and (value is None or type(value) in (int, float, bool)):
        yield name, value


@pytest.mark.parametrize("by", [["role"], ["message_index", "is_sampled"]])
def test_a_comparison_is_the_json_of_the_command(datasets: tuple[Path, Path], by: list[str]) -> None:
    arguments = ["--by", ",".join(by), "--alpha", "0.5", "--alpha", "0.1", "--sampled-by", "student"]
    report = printed("diff", *datasets, *arguments)
    frame = diff(*datasets, by=by, alpha=[0.5, 0.1], sampled_by="student")
    assert frame.height == len(report["groups"]) > 1
    for row, expected in zip(frame.iter_rows(named=True), report["groups"], strict=True):
        group = expected.pop("group")
        assert [row.pop(name) for name in by] == (group if len(by) > 1 else [group])
        assert {name: value for name, value in row.items() if value is not None} == {
            name: value for name, value in numbers(expected) if value is not None
        }
    (total,) = diff(*datasets, by=None, alpha=[0.5, 0.1], sampled_by="student").iter_rows(named=True)
    assert total == dict(numbers({k: v for k, v in report["total"].items() if k != "group"}))
    assert total["kl_teacher_student.upper"] is None
    assert total["kl_teacher_student.n_unbounded"] == total["n_tokens"]
    assert 0 < total["gjs_0.1.lower"] < total["gjs_0.1.upper"]


@pytest.mark.parametrize("by", ["role", "source,is_content"])
def test_statistics_are_the_json_of_the_command(datasets: tuple[Path, Path], by: str) -> None:
    report = printed("stats", datasets[0], "--by", by)
    frame = stats(datasets[0], by=by)
    names = by.split(",")
    assert frame.height == len(report["groups"]) > 1
    for row, expected in zip(frame.iter_rows(named=True), report["groups"], strict=True):
        group = expected.pop("group")
        assert [row.pop(name) for name in names] == (group if len(names) > 1 else [group])
        kept = {name: value for name, value in numbers(expected) if value is not None}
        assert {name: value for name, value in row.items() if value is not None} == kept


def test_statistics_of_all_tokens_are_one_row(datasets: tuple[Path, Path]) -> None:
    (total,) = stats(datasets[0], by=None).iter_rows(named=True)
    expected = dict(numbers(printed("stats", datasets[0])["total"]))
    del expected["group"]
    assert total == expected
    assert total["logprob_percentiles.p50"] < 0


def test_groups_have_the_types_of_the_token_table(datasets: tuple[Path, Path]) -> None:
    by = ["message_index", "role", "is_sampled", "metadata.task"]
    tokens = pl.read_parquet_schema(datasets[0] / "scores" / "part-00000.parquet")
    for frame in (stats(datasets[0], by=by), diff(*datasets, by=by)):
        found = [frame.schema[name] for name in by]
        assert found == [tokens["message_index"], tokens["role"], tokens["is_sampled"], pl.String]


def test_a_column_has_one_type_whatever_there_is(
    datasets: tuple[Path, Path], conversation: Make, write_dataset: Make
) -> None:
    tokens = write_dataset([conversation("c")], kind=DatasetKind.TOKENS)
    frames = [stats(datasets[0]), stats(datasets[0], by="source"), stats(tokens)]
    schemas = [dict(list(frame.schema.items())[1:]) for frame in frames]
    assert schemas[0] == schemas[1] == schemas[2]
    assert frames[2]["n_scored"].null_count() == frames[2].height


def test_rows_of_tokens_are_written_beside(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    frame = diff(*datasets, by=None, out=tmp_path / "out")
    rows = (
        pl.scan_parquet(tmp_path / "out" / "tokens.parquet").select(pl.col("^gjs_0.5_.*$").mean()).collect()
    )
    assert rows.row(0) == pytest.approx(frame.select("gjs_0.5.lower", "gjs_0.5.upper").row(0), abs=1e-12)


def test_wrong_usage_is_said(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: stats(datasets[0], by="rolle"), UsageError, "cannot group by 'rolle'"),
        (lambda: stats(tmp_path / "none"), InputError, "does not exist"),
        (lambda: diff(*datasets, alpha=1), UsageError, "alpha"),
        (lambda: diff(*datasets, on_error="pass"), UsageError, "`on_error` is 'pass'; expected fail, skip"),
        (lambda: diff(*datasets, sampled_by="me"), UsageError, "expected teacher, student"),
    ]
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            call()
