"""Names that are too long, and names whose bytes are no text."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

LONG = "a" * 5_000
NO_TEXT = os.fsdecode(b"a\xff")


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, tiny_scores: Path) -> Path:
    """Conversations, a model and scores with short names, and some whose names are no text."""
    shutil.copy(tiny_scores.parent / "convs.jsonl", tmp_path / "convs.jsonl")
    shutil.copy(tmp_path / "convs.jsonl", tmp_path / f"{NO_TEXT}.jsonl")
    (tmp_path / "model").symlink_to(tiny_model)
    shutil.copytree(tiny_scores, tmp_path / "scores")
    shutil.copytree(tiny_scores, tmp_path / NO_TEXT)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        ("render", "convs.jsonl", "-m", LONG, "-o", "out"),
        ("render", "convs.jsonl", "-m", "model", "-o", LONG),
        ("logprobs", "convs.jsonl", "-m", LONG, "-o", "out"),
        ("stats", LONG),
        ("diff", "scores", LONG),
        ("diff", "scores", "scores", "--html", LONG),
        ("show", LONG, "x"),
        ("export", "scores", "-o", LONG),
        ("template", LONG),
    ],
)
@pytest.mark.slow
def test_a_name_that_is_too_long_is_bad_input(tokscore: Run, folder: Path, line: tuple[str, ...]) -> None:
    finished = tokscore(*line, cwd=folder)
    assert finished.returncode == 3, finished.stderr
    assert "aaa… (5,0" in finished.stderr
    assert "longer than the name of a file can be" in finished.stderr
    assert len(finished.stderr) < 2_000


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("render", f"{NO_TEXT}.jsonl", "-m", "model", "--dry-run"), 0, ""),
        (
            ("render", "convs.jsonl", "-m", "model", "-o", NO_TEXT),
            2,
            r"a\xff is not UTF-8; expected a path that is",
        ),
        (("stats", NO_TEXT), 2, r"a\xff is not UTF-8; expected a path that is"),
        (("show", NO_TEXT, "kettle-limescale"), 2, r"a\xff is not UTF-8"),
        (("diff", "scores", NO_TEXT), 2, r"a\xff is not UTF-8"),
        (("export", "scores", "-o", NO_TEXT), 2, r"a\xff is not UTF-8"),
        (("stats", "scores", "--by", NO_TEXT), 2, r"cannot group by 'a\udcff'"),
        (("stats", "scores", "--by", f"metadata.{NO_TEXT}"), 0, r"no conversation has metadata.a\xff"),
        (("show", "scores", NO_TEXT), 3, r"no conversation 'a\udcff'"),
        (
            ("logprobs", "convs.jsonl", "-m", "model", "--dry-run", "--score", f"role={NO_TEXT}"),
            2,
            r"'role=a\udcff' is not UTF-8",
        ),
    ],
)
def test_a_name_that_is_no_text_is_shown_escaped(
    tokscore: Run, folder: Path, line: tuple[str, ...], code: int, said: str
) -> None:
    finished = tokscore(*line, cwd=folder)
    assert finished.returncode == code, finished.stderr
    assert said in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_file_whose_name_is_no_text_is_stored_with_its_bytes_escaped(tokscore: Run, folder: Path) -> None:
    finished = tokscore("render", f"{NO_TEXT}.jsonl", "-m", "model", "-o", "out", cwd=folder)
    assert finished.returncode == 0, finished.stderr
    conversations = pl.read_parquet(folder / "out" / "conversations" / "*.parquet")
    assert set(conversations["source_file"]) == {r"a\xff.jsonl"}
