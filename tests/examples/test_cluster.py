"""The files for schedulers are what these take, and their commands are commands of tokscore."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import EXAMPLES, RunTokscore

CLUSTER = EXAMPLES / "cluster"
DOCS = EXAMPLES.parent / "docs" / "cluster.md"


def read(name: str) -> Any:  # Any: YAML
    return yaml.safe_load((CLUSTER / name).read_text())


def commands() -> dict[str, list[str]]:
    (container,) = read("kubernetes.yaml")["spec"]["template"]["spec"]["containers"]
    (line,) = (
        line.removesuffix(" &")
        for line in (CLUSTER / "logprobs.sbatch").read_text().splitlines()
        if line.startswith("tokscore ")
    )
    return {
        "kubernetes.yaml": [*container["command"], *container["args"]],
        "skypilot.yaml": shlex.split(read("skypilot.yaml")["run"]),
        "logprobs.sbatch": shlex.split(line),
    }


@pytest.mark.parametrize("name", ["kubernetes.yaml", "skypilot.yaml", "logprobs.sbatch"])
def test_the_command_is_one_that_tokscore_plans(
    tokscore: RunTokscore, tiny_model: Path, tiny_scores: Path, tmp_path: Path, name: str
) -> None:
    places = {
        "/data/tokens": str(tiny_scores),
        "/data/model": str(tiny_model),
        "/data/scores": str(tmp_path / "out"),
    }
    program, *arguments = (places.get(argument, argument) for argument in commands()[name])
    assert program == "tokscore"
    finished = tokscore(*arguments, "--dry-run", "--engine", "transformers")
    assert finished.returncode == 0, finished.stderr


def test_the_job_of_kubernetes_starts_a_pod_again_by_its_index() -> None:
    """Kubernetes: Job, completionMode Indexed; backoffLimitPerIndex needs pods that are never restarted."""
    job = read("kubernetes.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert spec["backoffLimitPerIndex"] > 0
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_script_for_sbatch_is_the_one_in_the_docs_and_of_print(
    tokscore: RunTokscore, tiny_model: Path, tiny_scores: Path, tmp_path: Path
) -> None:
    script = (CLUSTER / "logprobs.sbatch").read_text()
    assert "".join(f"    {line}" for line in script.splitlines(keepends=True)) in DOCS.read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    printed = tokscore(
        *("logprobs", tiny_scores, "-m", tiny_model, "-o", tmp_path / "out", "--engine", "transformers"),
        *("--executor", "slurm", "--tasks", "16", "--print"),
        *("--sbatch", "partition=gpu", "--sbatch", "nodes=1", "--sbatch", "gres=gpu:8"),
        *("--sbatch", "cpus-per-task=64", "--sbatch", "time=12:00:00"),
    )
    assert printed.returncode == 0, printed.stderr
    assert _without_places(printed.stdout) == _without_places(script)


def _without_places(script: str) -> list[str]:
    return [
        line
        for line in script.splitlines()
        if not line.startswith(("cd ", "#SBATCH --output=")) and " logprobs " not in line
    ]
