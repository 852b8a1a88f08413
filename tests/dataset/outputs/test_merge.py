"""Outputs of one command are one dataset when they are put together, with as many parts as one wants."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.store_server import StoreServer
from tokscore.cli.app import app
from tokscore.dataset.claims.commit import CLAIMS, part_name
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.outputs.merge import Merged, merge
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import SCHEMAS
from tokscore.dataset.verification.verify import verify
from tokscore.rendering.inputs import open_source
from tokscore.rendering.run import render_source
from tokscore.rendering.source import ConversationSource

N_PARTS = 4


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four parts of two inputs, one conversation of which fails."""
    folder = tmp_path_factory.mktemp("merged")
    messages = [{"role": "user", "content": "Hi, kettle"}, {"role": "assistant", "content": "Hello!"}]
    for name in "ab":
        lines = [json.dumps({"id": f"c{n}", "messages": messages}) for n in range(4)]
        lines[1:1] = ['{"id": "broken", "messages": 7}'] if name == "b" else []
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    source = open_source([str(folder / "a.jsonl"), str(folder / "b.jsonl")], str(tiny_model), part_bytes=200)
    assert isinstance(source, ConversationSource)
    assert len(source.parts) == N_PARTS
    render_source(source, folder / "out", on_error="skip")
    return folder / "out"


@pytest.fixture
def halves(whole: Path, tmp_path: Path) -> list[Path]:
    """Two outputs; both have part 1, and none has the last."""
    found = []
    for name, parts in (("one", (0, 1)), ("two", (1, 2))):
        root = shutil.copytree(whole, tmp_path / name)
        for index in {*range(N_PARTS)} - {*parts}:
            (root / "tokens" / part_name(index)).unlink()
        found.append(root)
    return found


def rows(root: Path) -> dict[str, list[dict[str, object]]]:
    """All tables, but for the places that a part has in a dataset."""
    dataset = Dataset(root)
    tables = {
        table: [row for batch in dataset.batches(table) for row in batch.to_pylist()]
        for table in ("tokens", "spans", "messages", "conversations")
    }
    for row in tables["conversations"]:
        del row["part"], row["first_row"]
    return {**tables, "errors": [each._asdict() for each in dataset.failures()]}


def test_parts_of_several_outputs_are_copied_as_they_are(
    whole: Path, halves: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert merge(halves, out) == Merged(N_PARTS, 3, 1, 1)
    assert merge([*halves, whole], out) == Merged(N_PARTS, 1, 0, 3)
    assert verify(out).is_whole
    assert not (out / CLAIMS).exists()
    for path in whole.rglob("*.*"):
        assert (out / path.relative_to(whole)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("part_bytes", "n_parts"), [(1, N_PARTS), (10**6, 2)])
def test_joined_parts_have_the_same_rows(whole: Path, tmp_path: Path, part_bytes: int, n_parts: int) -> None:
    out = tmp_path / "out"
    assert merge([whole], out, part_bytes=part_bytes).n_parts == n_parts
    assert verify(out).is_whole
    assert not (out / CLAIMS).exists()
    assert rows(out) == rows(whole)
    assert list(SCHEMAS["tokens"].names) == Dataset(out).open_part("tokens", 0).read().column_names


def test_parts_that_are_missing_cannot_be_joined(halves: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the outputs has 1 part of 4"):
        merge(halves, tmp_path / "out", part_bytes=10**6)
    assert not (tmp_path / "out").exists()


def test_outputs_of_other_plans_and_damaged_parts_are_refused(
    whole: Path, halves: list[Path], tmp_path: Path
) -> None:
    joined = tmp_path / "joined"
    merge([whole], joined, part_bytes=10**6)
    with pytest.raises(InputError, match="the input is divided into other parts"):
        merge([whole, joined], tmp_path / "out")
    with pytest.raises(UsageError, match="is one of the outputs"):
        merge(halves, halves[0])
    (halves[1] / "spans" / part_name(2)).write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"spans/part-00002\.parquet is no whole Parquet file"):
        merge(halves, tmp_path / "out")


def test_the_command_says_what_is_missing(halves: list[Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["merge", *map(str, halves), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "3 parts of 4 written" in done.output
    assert "none of the outputs has 1 part" in done.output
    assert "were there already" not in done.output


def test_outputs_are_merged_into_a_bucket(store: StoreServer, whole: Path) -> None:
    done = CliRunner().invoke(app, ["merge", str(whole), "-o", "s3://bucket/out"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["verify", "s3://bucket/out"]).exit_code == 0
