"""Hidden states handed from one process to another in a file without a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from tokscore.dataset.errors import EngineError  # noqa: E402 (likewise)
from tokscore.scoring.exact.states import NamelessFile, States  # noqa: E402 (needs torch)

WIDTH = 5
READER = """
import sys, torch
from tokscore.scoring.exact.states import States
found = States(sys.argv[1], 5, torch.float32).read([(2, 1), (0, 2)])
print(found[:, 0].tolist())
"""
HOLDER = """
import sys, time, torch
from pathlib import Path
from tokscore.scoring.exact.states import NamelessFile, States
file = NamelessFile(Path(sys.argv[1]))
States(file.path, 5, torch.float32).write(0, torch.ones(1000, 5))
print(file.path, flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_come_back_as_they_went_in_whatever_the_order(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    rows = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(0)).to(kind)
    rows[3] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, torch.finfo(kind).tiny])
    with NamelessFile(tmp_path) as file:
        states = States(file.path, WIDTH, kind)
        # A block behind its place, one of a larger tensor that is no piece of memory, and one again.
        states.write(4, rows[4:])
        states.write(0, torch.cat([rows, rows], dim=1)[:4, :WIDTH])
        states.write(6, rows[6:7])
        found = States(file.path, WIDTH, kind).read([(7, 2), (0, 7), (3, 0)])
    expected = torch.cat([rows[7:], rows[:7]])
    assert found.dtype == kind
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_rows_that_nobody_wrote_are_an_error(tmp_path: Path) -> None:
    with NamelessFile(tmp_path) as file:
        states = States(file.path, WIDTH, torch.float32)
        states.write(0, torch.ones(3, WIDTH))
        assert states.read([]).shape == (0, WIDTH)
        with pytest.raises(EOFError, match="hidden states end before row 4"):
            states.read([(0, 4)])


def test_a_full_disk_is_an_error_that_says_so() -> None:
    with pytest.raises(
        EngineError, match=r"hidden states cannot be written: No space left on device\.\nSet "
    ):
        States("/dev/full", WIDTH, torch.float32).write(0, torch.ones(3, WIDTH))


@pytest.mark.slow
def test_another_process_reads_them(tmp_path: Path) -> None:
    with NamelessFile(tmp_path / "made") as file:
        States(file.path, WIDTH, torch.float32).write(0, torch.arange(3.0)[:, None].expand(3, WIDTH))
        finished = subprocess.run(
            [sys.executable, "-c", READER, file.path], capture_output=True, text=True, check=True
        )
    assert finished.stdout == "[2.0, 0.0, 1.0]\n"


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    assert os.stat(path).st_size == 1000 * WIDTH * 4  # noqa: PTH116 (of /proc)
    assert list(tmp_path.iterdir()) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not Path(path).exists()
    assert list(tmp_path.iterdir()) == []
