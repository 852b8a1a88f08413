"""The command that was given, as a job array of Slurm: every task runs it on the same output."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note, write
from tokscore.dataset.errors import TokscoreError, UsageError
from tokscore.dataset.stores.path import is_store

if TYPE_CHECKING:
    from tokscore.cli.options.execution import Processes

# Options of the command line that are for whoever submits, and how many values follow each.
_OURS = {"--executor": 1, "--tasks": 1, "--sbatch": 1, "--replicas": 1, "--print": 0}
_TASKS = re.compile(r"([1-9][0-9]{0,6})(%[1-9][0-9]{0,6})?")
_SBATCH = re.compile(r"(?:--)?([a-z][a-z0-9-]*)(?:=([^\r\n]*))?")
# Seconds before the time limit at which a task stops, so that it is queued again with its parts whole.
GRACE_S = 120


def task_command(arguments: Sequence[str], replicas: str | None) -> str:
    """What a task runs: the command that was given, with replicas on the node of the task.

    Args:
        arguments: Of the command line.
        replicas: Of each task; None for every GPU of its node.
    """
    kept: list[str] = []
    given = iter(arguments)
    for argument in given:
        name, equals, _ = argument.partition("=")
        if name not in _OURS:
            kept.append(argument)
        elif not equals:
            for _ in range(_OURS[name]):
                next(given)
    here = ["--executor", "local", "--replicas", replicas or "auto"]
    return shlex.join([sys.executable, "-m", "tokscore.cli.main", *kept, *here])


def sbatch_script(command: str, folder: Path, out: Path, tasks: str, sbatch: Sequence[str]) -> str:
    """A script for sbatch.

    Args:
        command: Of a task.
        folder: Where it runs.
        out: The dataset.
        tasks: Of the array, and after `%` how many at once.
        sbatch: More options, NAME=VALUE or NAME.

    Raises:
        UsageError: Tasks or options are none.

    Source:
        sbatch(1): --signal with B: signals the shell alone; scontrol(1), requeue.
    """
    found = _TASKS.fullmatch(tasks)
    if found is None:
        raise UsageError(f"`tasks` is {tasks!r}; expected a number of tasks, as in 8, or 64%8 for 8 at once.")
    settings: dict[str, str | None] = {
        "job-name": "tokscore",
        "array": f"1-{found[1]}{found[2] or ''}",
        "output": shlex.quote(f"{str(logs_of(out, folder)).replace('%', '%%')}.%A_%a.log"),
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{GRACE_S}",
        **_options(sbatch),
    }
    lines = (f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in settings.items())
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "# Every task takes parts as it gets free, and those of a task that was lost.",
            f"cd {shlex.quote(str(folder))} || exit 1",
            f"{command} &",
            "run=$!",
            "# Before the time limit: parts that are whole stay, and the task is queued again.",
            "again() {",
            '    kill -TERM "$run"; wait "$run"',
            '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"; exit 0',
            "}",
            "trap again USR1",
            "trap 'kill -TERM \"$run\"' TERM",
            "# A signal ends `wait`, and not the run.",
            'while wait "$run"; code=$?; kill -0 "$run" 2>/dev/null; do :; done',
            'exit "$code"',
            "",
        ]
    )


def logs_of(out: Path, folder: Path) -> Path:
    """Beginning of the names of logs: beside the output, or where the command runs if that is in a store."""
    return folder / out.name if is_store(out) else folder / out


def _options(given: Sequence[str]) -> Mapping[str, str | None]:
    settings: dict[str, str | None] = {}
    for option in given:
        found = _SBATCH.fullmatch(option)
        if found is None:
            raise UsageError(
                f"`sbatch` is {option!r}; expected an option of sbatch as NAME=VALUE, such as partition=gpu."
            )
        settings[found[1]] = found[2]
    return settings


def submit(script: str) -> str:
    """The id of the job that Slurm made of a script.

    Raises:
        TokscoreError: There is no sbatch, or it refused the script.
    """
    if shutil.which("sbatch") is None:
        raise TokscoreError(
            "there is no sbatch here; expected a machine that submits jobs to Slurm. `print` shows "
            "the script."
        )
    finished = subprocess.run(
        ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise TokscoreError(f"sbatch refused the job: {finished.stderr.strip()}")
    return finished.stdout.strip().partition(";")[0]


def submit_array(out: Path, processes: Processes) -> None:
    """Submit the command line to Slurm, or print the script of that.

    Args:
        out: The dataset.
        processes: The options; replicas are those of each task.

    Raises:
        UsageError: Options of sbatch are none.
        TokscoreError: Slurm takes no job from here.
    """
    command = task_command(sys.argv[1:], processes.replicas)
    script = sbatch_script(command, Path.cwd(), out, processes.tasks or "1", processes.sbatch or [])
    if processes.print:
        write(script)
        return
    job = submit(script)
    write(f"{job}\n")
    note(f"submitted job {job}: squeue -j {job} shows its tasks, scancel {job} ends them.")
    note(f"{logs_of(out, Path.cwd())}.{job}_*.log hold what they say.")
