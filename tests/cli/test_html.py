"""`--html` of diff and stats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokscore.analytics import report
from tokscore.cli.app import app
from tokscore.cli.printing import html
from tokscore.dataset.errors import UsageError

SAMPLES = (("a", (("user", (1, 2)), ("assistant", (16, 17)))), ("b", (("user", (3,)),)))


@pytest.fixture(scope="module")
def datasets(
    write_scores: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("html")
    return (
        write_scores(folder / "teacher", SAMPLES),
        write_scores(folder / "student", SAMPLES, noise=0.7, model="student"),
    )


def test_diff_writes_a_page_beside_its_table(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["diff", *map(str, datasets), "--html", str(path), "--alpha", "0.2"])
    assert result.exit_code == 0, result.output
    assert "KL(T||S)" in result.stdout
    assert "2 conversations token by token" in result.stderr
    assert "GJS 0.2" in path.read_text(encoding="utf-8")


def test_stats_writes_a_page_beside_its_table(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["stats", str(datasets[0]), "--html", str(path), "--format", "csv"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("group,")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_of_recorded_files_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["stats", "examples/recorded.jsonl", "--html", str(tmp_path / "report.html")]
    )
    assert isinstance(result.exception, UsageError)
    assert "--html takes one score dataset" in str(result.exception)


def test_the_default_limit_is_that_of_the_room() -> None:
    assert html.DEFAULT_MAX_MB == report.DEFAULT_MAX_MB


@pytest.mark.parametrize(
    ("place", "found"),
    [("none/report.html", "is in no directory that exists; make it first"), ("", "is a directory; expected")],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, place: str, found: str
) -> None:
    for command in (["diff", "nowhere", "nowhere"], ["stats", "nowhere"], ["diff", "--recorded", "nowhere"]):
        result = CliRunner().invoke(app, [*command, "--html", str(tmp_path / place)])
        assert isinstance(result.exception, UsageError), result.exception
        assert found in str(result.exception)


def test_a_directory_that_is_taken_is_refused_before_models_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    for more in ([], ["--exact"]):
        command = ["diff", "nowhere", "nowhere", "--on", "nothing.jsonl", "-o", str(tmp_path), *more]
        result = CliRunner().invoke(app, command)
        assert isinstance(result.exception, UsageError), result.exception
        assert "is not empty; expected a new directory" in str(result.exception)
