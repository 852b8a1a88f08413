"""Of two processes that write the same part, one puts it in place, all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.dataset.claims.two_writers import N_PARTS, check_one_wins, write
from tokscore.dataset.claims.commit import part_name


def test_two_writers_of_one_part_leave_the_files_of_one_of_them(tmp_path: Path) -> None:
    winners = check_one_wins(tmp_path, N_PARTS)
    assert {*winners} == {1, 2}, "one of them was always first, which shows little"
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_a_part_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    assert write(tmp_path, 0, 1)
    assert not write(tmp_path, 0, 2)
    assert pq.read_table(tmp_path / "tokens" / part_name(0))["token_id"].to_pylist() == [1, 1, 1]


def test_who_died_while_it_put_a_part_in_place_keeps_nobody_from_it(tmp_path: Path) -> None:
    dying = (
        "import os, signal, sys; from pathlib import Path; "
        "from tokscore.dataset.claims.commit import committing\n"
        "with committing(Path(sys.argv[1]), 'tokens', 0): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", dying, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert write(tmp_path, 0, 1)
