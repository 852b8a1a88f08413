"""What a run has written is used again, whatever ended it; what is damaged is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")
from tests.analytics.exact.pairs import Pair, score_pair, write_conversations
from tokscore.analytics.exact.report import exact_report
from tokscore.analytics.exact.run import CompareTokens
from tokscore.dataset.errors import InputError
from tokscore.scoring.engines.contract import TokenSequence

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(pair: Pair, small_parts: None, tmp_path: Path) -> Path:
    """The parts of a finished run."""
    exact_report(pair.run(tmp_path / "whole"))
    return tmp_path / "whole"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def started(pair: Pair, *, stop_after: int) -> Callable[[], Any]:
    """Models that are interrupted behind so many sequences."""

    @contextmanager
    def start(_ahead: Iterable[TokenSequence]) -> Iterator[CompareTokens]:
        n = 0

        def compare(sequences: Iterable[TokenSequence]) -> Iterator[Any]:
            nonlocal n
            for found in measure(sequences):
                if n == stop_after:
                    raise KeyboardInterrupt
                n += 1
                yield found

        with pair.start() as measure:
            yield compare

    return start


def test_a_run_is_divided_and_its_parts_are_not_run_again(pair: Pair, folder: Path) -> None:
    first = exact_report(pair.run(folder, start=None))
    assert len(names(folder)) > 4
    assert first.total.n_tokens == sum(pq.read_metadata(path).num_rows for path in folder.iterdir())


def test_an_interrupted_run_goes_on_behind_its_last_part(pair: Pair, folder: Path, tmp_path: Path) -> None:
    whole = exact_report(pair.run(folder, start=None))
    with pytest.raises(KeyboardInterrupt):
        exact_report(pair.run(tmp_path / "again", start=started(pair, stop_after=7)))
    kept = names(tmp_path / "again")
    assert 2 <= len(kept) < len(names(folder))
    before = {name: (tmp_path / "again" / name).stat().st_mtime_ns for name in kept}
    assert exact_report(pair.run(tmp_path / "again")) == whole
    assert names(tmp_path / "again") == names(folder)
    assert {name: (tmp_path / "again" / name).stat().st_mtime_ns for name in kept} == before


def test_parts_do_not_change_a_number(pair: Pair, folder: Path, tmp_path: Path) -> None:
    divided = exact_report(pair.run(folder, start=None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokscore.analytics.exact.run.MIN_PART_TOKENS", 4_096)
        whole = exact_report(pair.run(tmp_path / "one"))
    assert names(tmp_path / "one") == ["part-00000.parquet"]
    assert whole.total.n_tokens == divided.total.n_tokens
    for name, value in whole.total.values.items():
        assert divided.total.values[name] == pytest.approx(value, abs=1e-5)


def test_progress_counts_what_is_there_and_what_is_run(pair: Pair, folder: Path) -> None:
    total = pq.read_table(pair.teacher / "scores").num_rows
    seen: list[tuple[int, int, int]] = []
    (folder / names(folder)[-1]).unlink()
    exact_report(pair.run(folder, progress=lambda *each: seen.append(each)))
    assert {of for _, of, _ in seen} == {total}
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][0] == total
    assert 0 < seen[-1][2] < total / 2


def change(path: Path, column: str, value: float | int) -> None:
    table = pq.read_table(path)
    values = [value, *table[column].to_pylist()[1:]]
    index = table.column_names.index(column)
    field = table.schema.field(index)
    pq.write_table(table.set_column(index, field, pa.array(values, field.type)), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is no whole Parquet file"),
        (lambda path: change(path, "token_id", 1_000_000), "holds other tokens than the datasets"),
        (lambda path: change(path, "position", 9_999), "holds other tokens than the datasets"),
        (
            lambda path: change(path, "kl_teacher_student", -1.0),
            r"has -1 in column kl_teacher_student, row 0",
        ),
        (lambda path: change(path, "gjs_0.1", float("nan")), r"has nan in column gjs_0\.1, row 0"),
        (
            lambda path: change(path, "total_variation", 2.0),
            r"has 2 in column total_variation, row 0; expected 0 to 1",
        ),
        (lambda path: change(path, "student_logprob", -3.0), r"the student's logprob is"),
        (
            lambda path: pq.write_table(pq.read_table(path).drop_columns(["delta_p"]), path),
            "has no column delta_p; expected double",
        ),
    ],
)
def test_a_part_that_is_not_as_written_is_refused(
    pair: Pair, folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder / names(folder)[2])
    with pytest.raises(InputError, match=message) as refused:
        exact_report(pair.run(folder, start=None))
    assert "part-00002.parquet" in str(refused.value) or "student's logprob" in str(refused.value)


def test_a_flipped_byte_is_found(pair: Pair, folder: Path) -> None:
    path = folder / names(folder)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"part-00001\.parquet"):
        exact_report(pair.run(folder, start=None))


@pytest.mark.slow
def test_a_killed_run_ends_as_an_undisturbed_one(
    tiny_model: Path, other_tiny_model: Path, tmp_path: Path
) -> None:
    n_kills = 10
    lines = write_conversations(tmp_path / "convs.jsonl", 60)
    pair = score_pair(tmp_path, lines, tiny_model, other_tiny_model)
    arguments = [*pair, tmp_path / "whole", tmp_path / "killed", str(n_kills)]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.analytics.exact.killed_run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    n_done = [int(n) for n in finished.stdout.split()]
    assert len(n_done) == n_kills
    assert n_done == sorted(n_done)
    assert names(tmp_path / "killed") == names(tmp_path / "whole")
    # Kills that all come before the first part, or after the last, would show nothing.
    assert sum(0 < n < len(names(tmp_path / "whole")) for n in n_done) >= n_kills // 2, n_done
    for name in names(tmp_path / "whole"):
        assert pq.read_table(tmp_path / "whole" / name).equals(pq.read_table(tmp_path / "killed" / name)), (
            name
        )
