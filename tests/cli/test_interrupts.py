"""Ctrl-C: no traceback, whenever it comes and however often."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = Path(__file__).parent.parent.parent / "benchmarks" / "kills.py"
# The process may be ended by the signal itself while Python starts.
INTERRUPTED = {130, -signal.SIGINT}


@pytest.mark.parametrize(
    ("after", "gap_s"),
    [("scoring with", 0.0), ("scoring with", 0.1), ("engine:", 0.3), (None, 0.02)],
)
@pytest.mark.slow
def test_ctrl_c_twice_prints_no_traceback(
    tiny_model: Path, tmp_path: Path, after: str | None, gap_s: float
) -> None:
    lines = [json.dumps({"messages": [{"role": "user", "content": f"{i:0200}"}]}) for i in range(300)]
    (tmp_path / "convs.jsonl").write_text("\n".join(lines))
    command = ["logprobs", "convs.jsonl", "-m", str(tiny_model), "-o", "out", "--engine", "transformers"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tokscore.cli.main", *command],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    while after is not None and after not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    for _ in range(2):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(gap_s)
    process.wait(timeout=120)
    said = log.read_text()
    if after is None and said.startswith("Fatal Python error: init_import_site"):
        return  # it came before Python could run a line of ours
    assert process.returncode in INTERRUPTED, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.nightly
def test_kills_at_random_moments_lose_nothing() -> None:
    finished = subprocess.run(
        [sys.executable, str(KILLS), "--kills", "6"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "6 kills" in finished.stdout
    assert "0 wrong" in finished.stdout


IN_AN_IMPORT = """
import os, re, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Interrupting())
from tokscore.cli.main import main
sys.argv = ["tokscore", "stats", {scores!r}]
main()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tokscore.cli.printing.console", ""),
        ("tokscore.cli.app", ""),
        ("pyarrow", "interrupted; finished parts"),
    ],
)
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_an_import_prints_no_traceback(
    tiny_scores: Path, name: str, said: str, number: str, code: int
) -> None:
    script = IN_AN_IMPORT.format(name=name, signal=number, scores=str(tiny_scores))
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == code, finished.stderr
    assert finished.stderr.startswith(said)
    assert len(finished.stderr.splitlines()) <= 1


OVERTAKEN = """
from tokscore.cli import interrupts
interrupts._AGAIN_S = 600
"""


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_an_import_that_the_command_overtakes_is_told_at_its_end(
    tiny_scores: Path, number: str, code: int
) -> None:
    """It would be raised again after ten minutes; what the command prints is all there."""
    script = OVERTAKEN + IN_AN_IMPORT.format(name="pyarrow", signal=number, scores=str(tiny_scores))
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    undisturbed = subprocess.run(
        [sys.executable, "-m", "tokscore.cli.main", "stats", str(tiny_scores)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (finished.returncode, finished.stdout) == (code, undisturbed.stdout)
    assert finished.stderr == undisturbed.stderr + (
        "interrupted; finished parts are kept, the same command goes on from there.\n"
    )


AFTER_THE_END = """
import os, signal, sys, time
from tokscore.cli import interrupts
class Interrupting:
    def find_spec(self, name, *_):
        if name == "no_such_module":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
interrupts._AGAIN_S = 0.3
interrupts.unwind()
try:
    import no_such_module
except ImportError:
    pass
print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
interrupts.end_at_once()
time.sleep(0.4)
print("alive")
"""


def test_a_signal_that_is_to_come_again_does_not_come_after_the_end() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", AFTER_THE_END], capture_output=True, text=True, check=False
    )
    assert (finished.stdout, finished.stderr) == ("True\nalive\n", "")


WHILE_WORKERS_START = """
import os, signal, sys
from multiprocessing.popen_spawn_posix import Popen
launch = Popen._launch
def interrupted(self, process):
    os.killpg(0, signal.{signal})
    launch(self, process)
    os.killpg(0, signal.{signal})
Popen._launch = interrupted
from tokscore.cli.main import main
sys.argv = {arguments!r}
main()
"""


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.slow
def test_signals_before_and_after_each_process_starts_print_no_traceback(
    tiny_model: Path, tmp_path: Path, number: str, code: int
) -> None:
    """All of them go to all processes: a child gets one before it has run a line of Python."""
    for i in range(6):
        record = {"messages": [{"role": "user", "content": f"{i}"}]}
        (tmp_path / f"{i}.jsonl").write_text(json.dumps(record) + "\n")
    inputs = [str(tmp_path / f"{i}.jsonl") for i in range(6)]
    command = [
        "tokscore",
        "render",
        *inputs,
        "-m",
        str(tiny_model),
        "--workers",
        "2",
        "-o",
        str(tmp_path / "o"),
    ]
    script = WHILE_WORKERS_START.format(signal=number, arguments=command)
    finished = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    assert "interrupted; finished parts are kept" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "Exception ignored" not in finished.stderr


def has_workers(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has started processes that share its work."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = [Path(f"/proc/{each}/cmdline") for each in children.read_text().split()]
    return any(b"spawn_main" in each.read_bytes() for each in found if each.exists())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of the processes started")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_workers_that_just_start_print_no_traceback(
    tiny_model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    for i in range(6):
        record = {"messages": [{"role": "user", "content": f"{i}"}]}
        (tmp_path / f"{i}.jsonl").write_text(json.dumps(record) + "\n")
    command = ["render", *map(str, sorted(tmp_path.glob("*.jsonl"))), "-m", str(tiny_model), "--workers", "2"]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tokscore.cli.main", *command, "-o", str(tmp_path / "out")],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    while not has_workers(process):
        assert process.poll() is None, log.read_text()
        time.sleep(0.002)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.wait(timeout=120) == 128 + number, log.read_text()
    assert "Traceback" not in log.read_text()
