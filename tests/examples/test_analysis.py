"""examples/analysis.py from top to bottom, and docs/python.md, which shows its cells and what they print."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "analysis.py"
BLOCK = re.compile(r"^```(python)?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    """Language and text of each block in the documentation; the last two are about errors."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    return BLOCK.findall(text)[:-2]


def test_the_documentation_shows_the_cells_of_the_example(blocks: list[tuple[str, str]]) -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    cells = [code for language, code in blocks if language]
    assert len(cells) == source.count("# %%")
    assert [code for code in cells if code not in source] == []


@pytest.mark.model
@pytest.mark.slow
def test_the_example_prints_what_the_documentation_shows(
    blocks: list[tuple[str, str]],
    teacher_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(teacher_model.parents[1]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pl.Config():
        names = runpy.run_path(str(EXAMPLE))
    shown = "".join(text for language, text in blocks if not language)
    # Engines differ in the last digits from machine to machine; counts, names and types do not.
    assert without_measurements(capsys.readouterr().out) == without_measurements(shown)
    assert (names["bounds"].lower <= names["bounds"].upper).all()


def without_measurements(text: str) -> list[str]:
    """Its lines without those of the least likely tokens, and without numbers that have decimals."""
    lines = [line for line in text.splitlines() if not re.search(r"rank|-\d\d\.\d{4}|^GJS of token", line)]
    return [re.sub(r"-?\d+\.\d+|[\s─┄═]+", " ", line) for line in lines]
