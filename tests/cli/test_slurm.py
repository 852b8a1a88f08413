"""A command as a job array of Slurm: the script for any machine, and a real Slurm where one is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RunTokscore, unavailable
from tests.slurm_cluster import is_possible, running

N_FILES = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("inputs of Slurm")
    for i in range(N_FILES):
        records = [
            {"id": f"{i}-{j}", "messages": [{"role": "user", "content": "word " * (i + j)}]} for j in range(6)
        ]
        (folder / f"{i}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(folder / f"{i}.jsonl") for i in range(N_FILES)]


@pytest.fixture(scope="module")
def undisturbed(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert tokscore("render", *inputs, "-m", tiny_model, "-o", out).returncode == 0
    return contents(out)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def script_of(tokscore: RunTokscore, *arguments: str | Path) -> str:
    finished = tokscore("render", *arguments, "--executor", "slurm", "--print")
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_script_holds_the_options_of_sbatch_and_the_command_of_a_task(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path: Path
) -> None:
    script = script_of(
        tokscore,
        *(*inputs, "-m", tiny_model, "-o", tmp_path / "out", "--tasks=8%2", "--replicas", "4"),
        *("--sbatch", "partition=gpu", "--sbatch=gres=gpu:8", "--sbatch", "exclusive"),
    )
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in ("array=1-8%2", "partition=gpu", "gres=gpu:8", "exclusive", "requeue", "signal=B:USR1@120"):
        assert f"#SBATCH --{option}" in lines
    (command,) = (line for line in lines if "tokscore.cli.main" in line)
    assert command.endswith("--executor local --replicas 4 &")
    assert "sbatch" not in command
    assert "--tasks" not in command
    assert not (tmp_path / "out").exists()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor", "slurm", "--tasks", "0"], "--tasks is '0'; expected a number of tasks"),
        (["--executor", "slurm", "--sbatch", "a b"], "--sbatch is 'a b'; expected an option of sbatch"),
        (["--executor", "slurm", "--sbatch", "a=b\nrm"], "expected an option of sbatch"),
        (["--tasks", "2"], "are for --executor slurm"),
    ],
)
def test_options_that_sbatch_would_not_take_are_refused(
    tokscore: RunTokscore,
    tiny_model: Path,
    inputs: list[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    finished = tokscore("render", *inputs, "-m", tiny_model, "-o", tmp_path / "out", *arguments)
    assert finished.returncode == 2
    assert message in finished.stderr


@pytest.mark.slow
def test_four_runs_of_the_script_write_what_one_process_writes(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    script = script_of(tokscore, *inputs, "-m", tiny_model, "-o", out, "--tasks", "2", "--replicas", "1")
    tasks = [subprocess.Popen(["bash", "-c", script]) for _ in range(2)]
    assert [task.wait(timeout=120) for task in tasks] == [0, 0]
    assert contents(out) == undisturbed


@pytest.mark.slow
def test_a_task_that_is_told_to_stop_keeps_whole_parts_and_is_queued_again(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """The signal that Slurm sends before the time limit; a file tells what is asked of Slurm then."""
    out, asked = tmp_path / "out", tmp_path / "asked"
    script = script_of(tokscore, *inputs, "-m", tiny_model, "-o", out, "--replicas", "1")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {asked}\n')
    (tmp_path / "scontrol").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
    }
    task = subprocess.Popen(["bash", "-c", script], env=environment)
    while not (out / "manifest.json").exists():
        assert task.poll() is None
        time.sleep(0.01)
    task.send_signal(signal.SIGUSR1)
    assert task.wait(timeout=60) == 0
    assert asked.read_text() == "requeue 7_3\n"
    done = {name: content for name, content in contents(out).items() if name.startswith("tokens/part")}
    assert done.items() <= undisturbed.items()
    subprocess.run(["bash", "-c", script], env=environment, check=True, timeout=120)
    assert contents(out) == undisturbed


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not is_possible():
        unavailable("Slurm is not installed, or this is not root; on Debian: apt-get install slurm-wlm munge")
    with running(tmp_path_factory.mktemp("slurm")) as configuration:
        monkeypatch.setenv("SLURM_CONF", str(configuration))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_an_array_of_four_with_a_task_queued_again_and_one_cancelled_writes_what_one_process_writes(
    tokscore: RunTokscore, tiny_model: Path, inputs: list[str], tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    finished = tokscore(
        *("render", *inputs, "-m", tiny_model, "-o", out, "--executor", "slurm", "--tasks", "4"),
        *("--replicas", "1", "--sbatch", "time=5"),
    )
    assert finished.returncode == 0, finished.stderr
    job = finished.stdout.strip()
    while not (out / "manifest.json").exists():
        assert queued(job)
        time.sleep(0.1)
    subprocess.run(["scontrol", "requeue", f"{job}_1"], check=False)
    subprocess.run(["scancel", f"{job}_2"], check=True)
    until = time.monotonic() + 300
    while queued(job):
        assert time.monotonic() < until, queued(job)
        # What was requeued waits for two minutes by default.
        subprocess.run(["scontrol", "update", f"JobId={job}_1", "StartTime=now"], check=False)
        time.sleep(1)
    assert contents(out) == undisturbed


def queued(job: str) -> str:
    return subprocess.run(
        ["squeue", "-h", "-j", job, "-o", "%K %T"], capture_output=True, text=True, check=False
    ).stdout
