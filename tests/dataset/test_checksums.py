"""Files of a dataset that were changed, emptied, doubled or swapped are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.rendering import render

FILES = ("tokens", "spans", "messages", "conversations", "errors")


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts, each of one conversation and one that failed."""
    root = tmp_path_factory.mktemp("whole")
    for name in ("a", "b"):
        message = {"role": "user", "content": name}
        lines = [json.dumps({"id": name, "messages": messages}) for messages in ([message], [])]
        (root / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    render([str(root / "a.jsonl"), str(root / "b.jsonl")], tiny_model, out=root / "out", on_error="skip")
    return root / "out"


def part(root: Path, table: str, index: int = 0) -> Path:
    [path] = (root / table).glob(f"part-0000{index}.*")
    return path


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_part_is_refused(root: Path, name: str) -> None:
    shutil.copy(part(root, name, 1), part(root, name, 0))
    with pytest.raises(InputError, match=f"{name}/part-00000"):
        Dataset(root)


@pytest.mark.parametrize("times", [0, 2])
def test_errors_that_were_emptied_or_doubled_are_refused(root: Path, times: int) -> None:
    part(root, "errors").write_bytes(part(root, "errors").read_bytes() * times)
    with pytest.raises(InputError, match="was changed after it was written"):
        Dataset(root)


@pytest.mark.parametrize("name", FILES[:4])
def test_a_table_that_was_written_again_is_refused(root: Path, name: str) -> None:
    table = pq.read_table(part(root, name))
    pq.write_table(table, part(root, name))
    with pytest.raises(InputError, match="was changed after it was written"):
        Dataset(root)


def test_a_vocabulary_that_was_written_again_is_refused(root: Path) -> None:
    pq.write_table(pq.read_table(root / "vocab.parquet"), root / "vocab.parquet")
    with pytest.raises(InputError, match="was changed after it was written"):
        Dataset(root).vocabulary()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "is missing"),
        (b"", "holds no checksums"),
        (b"{}", "has checksums of nothing"),
        (b"[[", "holds no"),
    ],
)
def test_damaged_checksums_are_refused(root: Path, content: bytes | None, found: str) -> None:
    path = part(root, "checksums")
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=found):
        Dataset(root)


def test_a_dataset_of_an_older_version_without_checksums_is_read(root: Path) -> None:
    shutil.rmtree(root / "checksums")
    assert Dataset(root).vocabulary().num_rows > 0


def test_pages_of_the_vocabulary_have_checksums(root: Path) -> None:
    path = root / "vocab.parquet"
    chunk = pq.read_metadata(path).row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged: column "):
        Dataset(root).vocabulary()
