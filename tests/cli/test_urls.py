"""What cannot be written to a store is refused, and no folder is named after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
