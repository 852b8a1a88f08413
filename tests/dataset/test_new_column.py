"""A new token column takes three files: its row, the array that it is made of, and what fills that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
# File, what is there, and what is put in front of it.
CHANGES = (
    (
        "dataset/schema.py",
        '    Column(\n        "position_in_message",',
        '    Column("n_characters", pa.int32(), "Characters that it stands for.", unit="characters",\n'
        '        nullable=True, least=0, attribute="n_characters"),\n',
    ),
    (
        "dataset/tokens.py",
        "    def __post_init__(self) -> None:\n        for name in _array_names",
        "    n_characters: NDArray[np.int32] | None = None\n\n",
    ),
    (
        "rendering/attribution/renderer.py",
        "            char_stops=",
        "            n_characters=(encoding.stops - encoding.starts).astype(np.int32),\n",
    ),
)
READ = """
import sys, json
from tokscore.rendering import load_tokens
from tokscore.dataset.reading import Dataset
tokens, scores = (load_tokens(path, columns=["n_characters"])["n_characters"].to_list() for path in sys.argv[1:3])
held = [n for each in Dataset(sys.argv[1]).conversations() for n in each.tokens.n_characters.tolist()]
print(json.dumps([tokens, scores, held]))
"""


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The package with one column more."""
    package = tmp_path / "changed" / "tokscore"
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "typings" / "tokscore" / "__init__.py", package)
    for name, before, added in CHANGES:
        path = package / name
        text = path.read_text("utf-8")
        assert text.count(before) == 1, (name, before)
        path.write_text(text.replace(before, added + before), "utf-8")
    return package.parent


@pytest.mark.slow
def test_a_token_column_takes_three_files(changed: Path, tiny_model: Path, tmp_path: Path) -> None:
    def run(*arguments: str | Path) -> str:
        finished = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(changed)},
            check=False,
        )
        assert finished.returncode == 0, finished.stderr.decode()
        return finished.stdout.decode()

    text = "Grüße, 世界!"
    record = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Hi"}]}
    (tmp_path / "conversations.jsonl").write_text(json.dumps(record) + "\n")
    tokscore = ("-m", "tokscore.cli.main")
    run(*tokscore, "render", "conversations.jsonl", "-m", tiny_model, "-o", "tokens")
    counted = json.loads(
        run(*tokscore, "logprobs", "tokens", "-m", tiny_model, "-o", "scores", "--format", "json")
    )
    tokens, scores, held = json.loads(run("-c", READ, "tokens", "scores"))
    assert tokens == scores == held
    assert counted["total"]["n_tokens"] == len(tokens)
    assert json.loads(run(*tokscore, "stats", "scores", "--format", "json")) == counted
    user = pl.read_parquet(tmp_path / "scores/scores/*.parquet").filter(
        pl.col("is_content") & (pl.col("role") == "user")
    )
    # A byte-level token has the whole of the character that it is part of.
    assert user["n_characters"].to_list() == [1] * len(text.encode())
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    run("docs/generate.py")
    assert "| `n_characters` | int32 | characters | yes | Characters that" in (
        tmp_path / "docs/columns.md"
    ).read_text("utf-8")
