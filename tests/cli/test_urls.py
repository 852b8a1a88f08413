"""What cannot be written to a store is refused, and no folder is named after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.score_samples import write_scores
from tokscore.cli.app import app
from tokscore.dataset.errors import UsageError


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_an_output_on_a_web_server_is_refused_before_anything_is_written(
    write_jsonl: Callable[..., Path],
    conversation: dict[str, object],
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
) -> None:
    path = write_jsonl(conversation)
    monkeypatch.chdir(path.parent)
    arguments = ["render", path.name, "-m", str(tiny_model), "-o", "https://host/out", *more]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, UsageError)
    assert "https://host/out is where tokscore only reads; expected a directory" in str(done.exception)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_tables_of_a_comparison_are_files_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = write_scores(tmp_path / "scores", [("a", (("user", (1, 2)),))])
    done = CliRunner().invoke(app, ["diff", str(scores), str(scores), "-o", "s3://bucket/out"])
    assert isinstance(done.exception, UsageError)
    assert "s3://bucket/out is a URL; expected a path of this machine" in str(done.exception)
    assert not (tmp_path / "s3:").exists()
