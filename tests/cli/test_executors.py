"""The same command with other processes writes the same tables."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.conftest import RunTokscore
from tokscore.cli.options.execution import Processes
from tokscore.dataset.choices import Executor
from tokscore.rendering.executors.execution import Execution

FLOATS = ["logprob", "entropy", "top_logprobs"]
N_FILES = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("inputs")
    for i in range(N_FILES):
        records = [
            {
                "id": f"{i}-{j}",
                "messages": [
                    {"role": "user", "content": f"{j} {'word ' * (j + i)}"},
                    {"role": "assistant", "content": "yes" * j},
                ],
            }
            for j in range(6)
        ]
        (folder / f"{i}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(folder / f"{i}.jsonl") for i in range(N_FILES)]


@pytest.fixture(scope="module")
def scored(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("scored") / "out"
    finished = tokscore("logprobs", *inputs, "-m", tiny_model, "-o", out, "--engine", "transformers")
    assert finished.returncode == 0, finished.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_two_replicas_score_what_one_process_scores(
    tiny_model: Path, inputs: list[str], scored: Path, tmp_path: Path, executor: str
) -> None:
    if executor == "ray":
        pytest.importorskip("ray")
    out = tmp_path / "out"
    # Not by way of the server of commands: Ray does not start in a fork of it.
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "tokscore.cli.main", "logprobs", *inputs, "-m", str(tiny_model)),
            *("-o", str(out), "--engine", "transformers", "--executor", executor, "--replicas", "2"),
            *("--format", "json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)
    for table in ("scores", "conversations", "messages", "spans"):
        names = [sorted(path.name for path in (root / table).iterdir()) for root in (scored, out)]
        assert names[0] == names[1]
        assert len(names[0]) == N_FILES
        for name in names[0]:
            assert_close(pl.read_parquet(scored / table / name), pl.read_parquet(out / table / name))


def assert_close(one: pl.DataFrame, other: pl.DataFrame) -> None:
    floats = [name for name in FLOATS if name in one.columns]
    assert one.drop(floats).equals(other.drop(floats))
    for name in floats:
        flat = [frame[name].explode() if name == "top_logprobs" else frame[name] for frame in (one, other)]
        assert flat[0].is_null().equals(flat[1].is_null())
        np.testing.assert_allclose(*(values.drop_nulls().to_numpy() for values in flat), atol=5e-5)


def test_a_cluster_is_used_whole_however_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = Processes(executor=Executor.RAY)
    assert ray.execution() == Execution(executor=Executor.RAY, replicas=1)
    assert replace(ray, ray_address="a:1").execution().replicas is None
    monkeypatch.setenv("RAY_ADDRESS", "b:2")
    assert ray.execution() == Execution(executor=Executor.RAY, replicas=None, ray_address="b:2")
    assert replace(ray, replicas="2").execution().replicas == 2
    assert Processes().execution().is_here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "some"], '"some"'),
        (["--replicas", "0"], "'0'; expected a number from 1 on, or auto"),
        (["--replicas", "9" * 5_000], "9'; expected a number from 1 on, or auto"),
        (["--stall-timeout", "nan"], "--stall-timeout is nan; expected more than 0"),
        (["--stall-timeout", "inf"], "--stall-timeout is inf; expected more than 0"),
        (["--ray-address", "auto"], "is for --executor ray"),
        (["--executor", "ray", "--replica-memory", "9"], "is for --executor local"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tokscore: RunTokscore, inputs: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    finished = tokscore("render", *inputs, "-m", "no-model", "-o", tmp_path / "out", *arguments)
    assert finished.returncode == 2
    assert message.strip('"') in finished.stderr
    assert "Traceback" not in finished.stderr
