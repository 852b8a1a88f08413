"""URLs as options: those that cannot be written to are refused, and none is shown with what is secret in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokscore.cli.app import app
from tokscore.dataset.errors import UsageError
from tokscore.rendering.inputs import read_tools
from tokscore.rendering.reading.formats.mapped import mapped_format
from tokscore.rendering.templates.files import read_template


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


@pytest.mark.parametrize("read", [read_template, read_tools, mapped_format])
def test_the_query_of_a_small_file_that_cannot_be_read_is_not_shown(
    read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKSCORE_STORE_PATIENCE_S", "0")
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:9/file\.json") as caught:
        read("http://127.0.0.1:9/file.json?signature=secret")
    assert "secret" not in str(caught.value)
