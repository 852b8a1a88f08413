"""Commands import what they need: no torch or polars to make tokens, no numba for a few rows, no scipy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES

HEAVY = ("torch", "vllm", "numba", "transformers", "polars", "pandas", "scipy", "cffi", "trio")
RUN = f"""
import atexit, sys
names = {HEAVY!r}
atexit.register(lambda: print("imported:", *[name for name in names if name in sys.modules], file=sys.stderr))
from tokscore.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKSCORE_CACHE": cache}


def imported(environment: dict[str, str], *arguments: str | Path) -> list[str]:
    """Those of the heavy packages that a command imported."""
    finished = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stderr.rpartition("imported:")[2].split()


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token dataset, rendered by a first process, which may import torch to find the tokenizer's class."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "convs.jsonl").write_text('{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}\n')
    imported(environment, "render", folder / "convs.jsonl", "-m", tiny_model, "-o", folder / "tokens")
    return folder / "tokens"


def test_rendering_again_goes_without_torch_and_polars(
    tokens: Path, tiny_model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ("render", tokens.parent / "convs.jsonl", "-m", tiny_model, "-o", tmp_path / "out")
    assert imported(environment, *command) == ["transformers"]
    tables = [next((root / "tokens").iterdir()).read_bytes() for root in (tokens, tmp_path / "out")]
    assert tables[0] == tables[1]


def test_reading_a_dataset_of_few_rows_needs_no_compiler_and_no_model_library(
    tokens: Path, tiny_scores: Path, environment: dict[str, str]
) -> None:
    assert imported(environment, "stats", tokens) == ["polars"]
    assert imported(environment, "stats", tiny_scores) == ["polars"]
    assert imported(environment, "show", tiny_scores, "kettle-limescale") == []
    assert imported(environment, "stats", EXAMPLES / "recorded.jsonl") == []
    assert imported(environment, "formats") == []


def test_diff_needs_no_model_library(tiny_scores: Path, environment: dict[str, str]) -> None:
    assert imported(environment, "diff", tiny_scores, tiny_scores) == ["numba", "polars"]


def test_little_is_imported_before_ctrl_c_is_handled() -> None:
    script = "import sys; before = {*sys.modules}; import tokscore.cli.main; print(*{*sys.modules} - before)"
    finished = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    imported = {name for name in finished.stdout.split() if name.startswith("tokscore")}
    own = {"tokscore", "tokscore.cli", "tokscore.cli.interrupts", "tokscore.cli.main", "tokscore.dataset"}
    lazy = {"tokscore.dataset.interactive", "tokscore.dataset.interactive.lazy_names"}
    assert imported == own | lazy
    assert {"typing", "re", "contextlib", "importlib.util"}.isdisjoint(finished.stdout.split())
