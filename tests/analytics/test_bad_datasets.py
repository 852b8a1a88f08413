"""Damaged datasets through `tokscore diff` and `tokscore stats`: named and refused, or counted and left out."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rewriting import rewrite
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
Damage = Callable[[Path, Path], object]
SCORES = "scores/part-00001.parquet"


def run(*arguments: object) -> Any:
    finished = CliRunner().invoke(app, [*map(str, arguments), "--format", "json"])
    if finished.exception is not None:
        raise finished.exception
    return json.loads(finished.stdout), finished.stderr


@pytest.fixture
def whole(conversation: Make, write_dataset: Make) -> tuple[Path, Path]:
    """A dataset, and one of the same conversations by another plan."""
    ours = [
        conversation(f"c{index}", [("user", 30), ("assistant", 40 + index)], seed=index) for index in range(4)
    ]
    return write_dataset(ours, n_parts=2), write_dataset(ours, n_parts=2, top_k=3)


def rewritten(change: Callable[[pa.Table], pa.Table], name: str = SCORES) -> Damage:
    def damage(root: Path, other: Path) -> None:
        table = pq.read_table(root / name)
        rewrite(change(table).replace_schema_metadata(table.schema.metadata), root / name)

    return damage


def with_value(column: str, row: int, value: float) -> Damage:
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        index = table.column_names.index(column)
        return table.set_column(index, table.field(column), pa.array(values, table.field(column).type))

    return rewritten(change)


def swapped(table: pa.Table) -> pa.Table:
    order = np.arange(table.num_rows)
    order[[5, 6]] = order[[6, 5]]
    return table.take(pa.array(order))


def flipped(root: Path, other: Path) -> None:
    path = root / SCORES
    column = pq.read_metadata(path).row_group(0).column(7)
    assert column.path_in_schema == "is_content"
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 2] ^= 0xFF
    path.write_bytes(content)


def half_written(root: Path, other: Path) -> None:
    path = root / SCORES
    path.with_name(f".{path.name}.host.1.tmp").write_bytes(path.read_bytes()[:500])
    path.unlink()


def of_another_plan(name: str) -> Damage:
    return lambda root, other: shutil.copy(other / name, root / name)


def cut(name: str) -> Damage:
    return lambda root, other: (root / name).write_bytes((other / name).read_bytes()[:-9])


def without_footer(name: str) -> Damage:
    def damage(root: Path, other: Path) -> None:
        content = bytearray((root / name).read_bytes())
        content[-60:-8] = b"\xff" * 52
        (root / name).write_bytes(content)

    return damage


@pytest.mark.parametrize("command", ["diff", "stats"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda root, _: (root / SCORES).unlink(), "1 of 2 parts are missing", id="missing"),
        pytest.param(half_written, "1 of 2 parts are missing", id="half-written"),
        pytest.param(cut(SCORES), "part-00001.parquet is no whole Parquet file", id="cut"),
        pytest.param(without_footer(SCORES), "part-00001.parquet is no whole Parquet file", id="footer"),
        pytest.param(
            without_footer("conversations/part-00001.parquet"),
            "conversations/part-00001.parquet is no whole Parquet file",
            id="footer of conversations",
        ),
        pytest.param(of_another_plan(SCORES), "part-00001.parquet belongs to another plan", id="plan"),
        *(
            pytest.param(
                of_another_plan(f"{name}/part-00001.parquet"),
                f"{name}/part-00001.parquet belongs to another plan",
                id=name,
            )
            for name in ("messages", "conversations", "spans")
        ),
        pytest.param(
            rewritten(lambda table: table.slice(0, 100)),
            "has 100 rows; expected 146, the tokens of",
            id="short",
        ),
        pytest.param(
            with_value("logprob", 80, math.nan),
            r"conversation 'c3', position 8: the logprob .*is nan",
            id="nan",
        ),
        pytest.param(
            with_value("logprob", 80, 0.5),
            r"conversation 'c3', position 8: the logprob .*is 0\.5",
            id="above 0",
        ),
        pytest.param(
            with_value("logprob", 80, math.inf),
            r"conversation 'c3', position 8: the logprob .*is inf",
            id="infinite",
        ),
    ],
)
def test_a_damaged_dataset_is_refused_with_the_place(
    whole: tuple[Path, Path], command: str, damage: Damage, message: str
) -> None:
    sides = (whole[0], whole[0]) if command == "diff" else (whole[0],)
    damage(*whole)
    with pytest.raises(InputError, match=message):
        run(command, *sides)


def test_a_changed_byte_is_noticed_by_stats(whole: tuple[Path, Path]) -> None:
    flipped(*whole)
    with pytest.raises(InputError, match=r"part-00001\.parquet is damaged"):
        run("stats", whole[0])


def test_metadata_is_given_to_no_rows_out_of_order(whole: tuple[Path, Path]) -> None:
    rewritten(swapped)(*whole)
    with pytest.raises(InputError, match="row 5 has position 6; expected rows in order"):
        run("stats", whole[0], "--by", "metadata.task")


@pytest.mark.parametrize(
    "damage",
    [with_value("logprob", 80, math.nan), with_value("logprob", 80, 0.5), rewritten(swapped)],
    ids=["nan", "above 0", "order"],
)
def test_bad_conversations_are_left_out_of_a_comparison_and_counted(
    whole: tuple[Path, Path], damage: Damage, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(whole[0], teacher)
    damage(*whole)
    with pytest.raises(InputError, match="`on_error='skip'`"):
        run("diff", teacher, whole[0])
    report, stderr = run("diff", teacher, whole[0], "--on-error", "skip")
    assert (report["n_conversations"], report["n_skipped"]) == (3, 1)
    assert report["skipped"][0]["conversation_id"] in ("c1", "c3")
    assert "1 conversation could not be compared and was left out" in stderr


def test_no_shared_conversation_is_refused(
    whole: tuple[Path, Path], conversation: Make, write_dataset: Make
) -> None:
    with pytest.raises(InputError, match=r"share no conversation \(4 and 1\)"):
        run("diff", whole[0], write_dataset([conversation("other")]))


def test_a_damaged_vocabulary_is_named(
    whole: tuple[Path, Path], conversation: Make, write_dataset: Make
) -> None:
    made = [conversation(f"c{n}", [("user", 30), ("assistant", 40 + n)], seed=n, model=1) for n in range(4)]
    (whole[0] / "vocab.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"vocab\.parquet is no whole Parquet file"):
        run("diff", whole[0], write_dataset(made))


def test_a_comparison_of_nothing_but_bad_conversations_is_refused(
    conversation: Make, write_dataset: Make
) -> None:
    ours = [conversation(f"c{index}", [("user", 4)], seed=index) for index in range(4)]

    def impossible(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        logprobs = [None, *[0.5] * 4]
        recorded = pa.array(logprobs, pa.float32())
        return columns | {"logprob": recorded, "recorded_logprob": recorded}

    bad = write_dataset(ours, columns=impossible)
    with pytest.raises(InputError, match="none of the 4 shared conversations could be compared"):
        run("diff", bad, write_dataset(ours), "--on-error", "skip")
    with pytest.raises(InputError, match="none of the 4 conversations could be compared"):
        run("diff", "--recorded", bad, "--on-error", "skip")
    alone = write_dataset(ours[:1], columns=impossible)
    with pytest.raises(InputError, match="the only conversation could not be compared"):
        run("diff", "--recorded", alone, "--on-error", "skip")
