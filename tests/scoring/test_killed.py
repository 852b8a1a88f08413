from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokscore.dataset.reading import Dataset

FLOATS = ["logprob", "entropy", "top_logprobs"]
N_KILLS = 10


@pytest.mark.slow
def test_a_run_killed_ten_times_ends_as_an_undisturbed_one(tiny_model: Path, tmp_path: Path) -> None:
    records = [
        {
            "id": "x",  # all the same: the others become x#2, x#3 and so on
            "messages": [
                {"role": "user", "content": f"{i % 50} {'word ' * (i % 23)}"},
                {"role": "assistant", "content": "yes" * (i % 7)},
            ],
        }
        for i in range(240)
    ]
    lines = tmp_path / "convs.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    finished = subprocess.run(
        [
            *(sys.executable, str(Path(__file__).with_name("killed_run.py")), str(tiny_model), str(lines)),
            *(str(tmp_path / "undisturbed"), str(tmp_path / "killed"), str(N_KILLS)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    n_done = [int(n) for n in finished.stdout.split()]
    assert len(n_done) == N_KILLS
    assert n_done == sorted(n_done)
    n_parts = len(Dataset(tmp_path / "killed").manifest.parts)
    # Kills that all come before the first part, or after the last, would show nothing.
    assert sum(0 < n < n_parts for n in n_done) >= N_KILLS // 2, n_done
    assert_same_scores(tmp_path / "undisturbed", tmp_path / "killed", n_conversations=240)
    for table in ("conversations", "messages", "spans"):
        assert pl.read_parquet(tmp_path / f"undisturbed/{table}/*.parquet").equals(
            pl.read_parquet(tmp_path / f"killed/{table}/*.parquet")
        )
    assert not [path for path in (tmp_path / "killed").rglob(".*") if path.is_file()]


@pytest.mark.parametrize(
    ("engine", "moments", "n_done"),
    [
        # In the first tree, in the second, and in the one that is then the second of those left.
        pytest.param("transformers", [3, 8 + 5, 8 + 2], [0, 1, 2], marks=pytest.mark.slow),
        pytest.param("vllm", [8 + 5], [1], marks=pytest.mark.vllm),
    ],
)
def test_a_run_killed_in_the_middle_of_a_tree_ends_as_an_undisturbed_one(
    tiny_llama: Path, tmp_path: Path, engine: str, moments: list[int], n_done: list[int]
) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
    folders = [tmp_path / "undisturbed", tmp_path / "killed"]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.scoring.killed_tree", str(tiny_llama), engine]
        + [str(each) for each in [*folders, *moments]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=Path(__file__).parents[2],
    )
    assert finished.returncode == 0, finished.stderr
    assert [int(n) for n in finished.stdout.split()] == n_done
    assert_same_scores(*folders, n_conversations=24)


def assert_same_scores(undisturbed: Path, killed: Path, *, n_conversations: int) -> None:
    one, other = (pl.read_parquet(path / "scores/*.parquet") for path in (undisturbed, killed))
    assert other["conversation_id"].n_unique() == n_conversations
    assert not other.select("conversation_id", "position").is_duplicated().any()
    assert one.drop(FLOATS).equals(other.drop(FLOATS))
    for name in FLOATS:
        flat = [frame[name].explode() if name == "top_logprobs" else frame[name] for frame in (one, other)]
        assert flat[0].is_null().equals(flat[1].is_null())
        np.testing.assert_allclose(*(values.drop_nulls().to_numpy() for values in flat), atol=5e-5)
