"""Of two processes that write the same part, one puts it in place, all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.dataset.claims.two_writers import N_PARTS, write
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.table_files import CHECKSUMS, check_checksums

TABLES = ("tokens", "spans", "messages", "conversations")
SCRIPT = str(Path(__file__).with_name("two_writers.py"))


def test_two_writers_of_one_part_leave_the_files_of_one_of_them(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(tmp_path), token_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for token_id in ("1", "2")
    ]
    winners = []
    for part in range(N_PARTS):
        answers = []
        for writer in writers[:: 1 if part % 2 else -1]:
            assert writer.stdin is not None
            writer.stdin.write(f"{part}\n")
        for writer in writers:
            assert writer.stdout is not None
            answers.append(writer.stdout.readline().strip() == "True")
        assert sorted(answers) == [False, True]
        winner = 1 + answers.index(True)
        winners.append(winner)
        paths = {table: tmp_path / table / part_name(part) for table in TABLES}
        errors = {"errors": tmp_path / "errors" / part_name(part, "jsonl")}
        check_checksums(tmp_path / CHECKSUMS / part_name(part, "json"), errors | paths)
        assert pq.read_table(paths["tokens"])["token_id"].to_pylist() == [winner] * 3 * winner
        assert pq.read_metadata(paths["conversations"]).num_rows == winner
    for writer in writers:
        writer.communicate()
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
