"""A dataset is held against its plan row by row, and what is bad is made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rewriting import without_checksums
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import TOKENS
from tokscore.dataset.table_files import TableFile
from tokscore.dataset.verification.part_rows import check_statistics
from tokscore.dataset.verification.repair import SET_ASIDE, repair
from tokscore.dataset.verification.verify import verify
from tokscore.rendering.inputs import open_source
from tokscore.rendering.run import render_source
from tokscore.rendering.source import ConversationSource

N_RECORDS = 6
TABLES = ("tokens", "spans", "messages", "conversations")


def render(folder: Path, model: Path) -> None:
    """Three parts of two conversations each."""
    source = open_source([str(folder / "in.jsonl")], str(model), part_bytes=150)
    assert isinstance(source, ConversationSource)
    assert len(source.parts) == N_RECORDS // 2
    render_source(source, folder / "out")


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    messages = [{"role": "user", "content": "Hi, kettle"}, {"role": "assistant", "content": "Hello!"}]
    lines = [json.dumps({"id": f"c{n}", "messages": messages}) for n in range(N_RECORDS)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    render(folder, tiny_model)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def part(root: Path, table: str, index: int = 1) -> Path:
    return next((root / table).glob(f"part-{index:05d}.*"))


def change(root: Path, table: str, column: str, make: Callable[[list[object]], list[object]]) -> None:
    """Write part 1 of a table with another column, and its metadata as they were."""
    without_checksums(root)
    path = part(root, table)
    found = pq.read_table(path)
    at = found.column_names.index(column)
    values = pa.array(make(found[column].to_pylist()), found.schema.field(column).type)
    said = pq.read_metadata(path).metadata
    changed = found.set_column(at, found.schema.field(column), values)
    pq.write_table(changed.replace_schema_metadata(said), path)


def test_a_whole_dataset_has_no_faults(whole: Path) -> None:
    found = verify(whole / "out")
    assert (found.n_whole, found.n_missing, found.faults) == (3, 0, [])
    assert found.n_rows == Dataset(whole / "out").n_rows("tokens")


@pytest.mark.parametrize("table", [*TABLES, "errors"])
def test_a_part_that_is_cut_is_found_set_aside_and_made_again(
    folder: Path, tiny_model: Path, table: str
) -> None:
    root = folder / "out"
    before = {path: path.read_bytes() for path in sorted(root.rglob("part-*"))}
    content = part(root, table).read_bytes()
    part(root, table).write_bytes(content[:-1] if content else b"{}\n")

    found = verify(root)
    assert [fault.part for fault in found.faults] == [1]
    assert repair(root, found.faults) == [1]
    assert verify(root).n_missing == 1
    assert len([path for path in (root / SET_ASIDE).rglob("*") if path.is_file()]) == 6

    render(folder, tiny_model)
    assert verify(root).is_whole
    assert {path: path.read_bytes() for path in before} == before


def test_a_damaged_page_is_found_behind_a_footer_that_is_whole(folder: Path) -> None:
    path = part(folder / "out", "tokens")
    content = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(TOKENS.get_field_index("token_id"))
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    [fault] = verify(folder / "out").faults
    assert fault.part == 1
    assert "cannot be read" in fault.reason


def other(values: list[object]) -> list[object]:
    return ["c0" if value == "c2" else value for value in values]


@pytest.mark.parametrize(
    ("table", "column", "make", "reason"),
    [
        ("tokens", "position", lambda found: [*found[1:], found[0]], "has position 1; expected"),
        ("tokens", "token_id", lambda found: [*found[1:], found[0]], "other token ids than were written"),
        ("tokens", "token_id", lambda found: [*found[1:], 2**30], "vocabulary has"),
        ("tokens", "conversation_id", other, "another conversation_id than its conversation in row 0"),
        ("tokens", "is_content", lambda found: [not value for value in found], "its tokens have"),
        ("spans", "stop", lambda found: [found[0] + 1, *found[1:]], "break at token"),
        ("spans", "start", lambda found: [*found[:-1], found[-1] - 1], "break at token"),
        ("conversations", "source_line", lambda found: [found[0] - 1, found[1]], "has the lines from 3 to 4"),
        ("conversations", "source_line", lambda found: [found[1], found[0]], "twice or out of order"),
        ("messages", "n_tokens", lambda found: [found[0] + 1, *found[1:]], "its messages have"),
    ],
)
def test_rows_that_are_not_those_of_the_plan_are_found_without_checksums(
    folder: Path, table: str, column: str, make: Callable[[list[object]], list[object]], reason: str
) -> None:
    change(folder / "out", table, column, make)
    [fault] = verify(folder / "out").faults
    assert fault.part == 1
    assert reason in fault.reason


def test_one_conversation_in_two_parts_is_found(folder: Path) -> None:
    root = folder / "out"
    for table in TABLES:
        change(root, table, "conversation_id", other)
    [fault] = verify(root).faults
    assert (fault.part, fault.reason) == (1, "conversation 'c0' is in part 0, too.")


def test_statistics_of_a_footer_are_held_against_the_rows(folder: Path) -> None:
    path = part(folder / "out", "tokens")
    with TableFile(path, "tokens") as file:
        rows = file.read()
        check_statistics(file, 0, rows)
        at = rows.column_names.index("position")
        shifted = rows.set_column(
            at, rows.schema.field(at), pc.add(rows["position"], pa.scalar(1, pa.int32()))
        )
        with pytest.raises(InputError, match=r"has 1 to .* in column position; its footer says 0 to"):
            check_statistics(file, 0, shifted)


def test_a_part_that_is_no_part_of_the_plan_is_found_and_left(folder: Path) -> None:
    root = folder / "out"
    shutil.copy(part(root, "tokens"), root / "tokens" / "part-00009.parquet")
    [fault] = verify(root).faults
    assert "part-00009.parquet belongs to no part of the plan" in fault.reason
    assert repair(root, [fault]) == []
    assert (root / "tokens" / "part-00009.parquet").exists()


def test_a_file_that_cannot_be_read_for_now_is_no_part_to_make_again(folder: Path) -> None:
    path = part(folder / "out", "spans")
    path.unlink()
    path.symlink_to(path)  # which the system refuses to open, whoever asks
    [fault] = verify(folder / "out").faults
    assert not fault.is_repairable
    assert repair(folder / "out", [fault]) == []


def test_the_command_ends_with_1_where_something_is_wrong(folder: Path) -> None:
    root = folder / "out"
    done = CliRunner().invoke(app, ["verify", str(root), "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["n_whole"] == 3
    part(root, "tokens", 2).unlink()
    part(root, "messages", 0).write_bytes(b"")
    done = CliRunner().invoke(app, ["verify", str(root), "--format", "json", "--repair"])
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["n_whole"], found["n_missing"], found["set_aside"]) == (1, 1, [0])


@pytest.mark.parametrize(
    ("part_bytes", "said"), [(150, "3 of 3 parts are whole"), (None, "1 of 1 part is whole")]
)
def test_the_command_counts_one_part_and_several(
    whole: Path, tiny_model: Path, tmp_path: Path, part_bytes: int | None, said: str
) -> None:
    root = whole / "out"
    if part_bytes is None:
        root = tmp_path / "one"
        source = open_source([str(whole / "in.jsonl")], str(tiny_model))
        assert isinstance(source, ConversationSource)
        render_source(source, root)
    assert said in CliRunner().invoke(app, ["verify", str(root)]).stderr
