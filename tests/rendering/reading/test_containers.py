"""Records inside an object or an archive."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tokscore.dataset.errors import InputError
from tokscore.rendering.reading.unpacking import unpacked

SAMPLE = {"id": 1, "epoch": 1, "input": "Hi", "target": "x", "messages": [{"role": "user", "content": "Hi"}]}
_CENTRAL = b"PK\x01\x02"
_ZSTD = 93


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in unpacked(path, path.name).read_bytes().splitlines()]


def test_the_samples_of_an_archive_are_its_records(tmp_path: Path) -> None:
    members = {"header.json": b"{}", "samples/1.json": json.dumps(SAMPLE, indent=2).encode()}
    assert lines(archive(tmp_path / "a.eval", **members)) == [SAMPLE]


def test_members_that_zstd_compressed_are_read(tmp_path: Path) -> None:
    content = pa.compress(json.dumps(SAMPLE).encode(), "zstd", asbytes=True)
    path = archive(tmp_path / "a.eval", **{"samples/1.json": content})
    # Python's zipfile has no zstd before 3.14: it was stored, and the directory says it is compressed.
    whole = path.read_bytes()
    at = whole.index(_CENTRAL) + 10
    path.write_bytes(whole[:at] + struct.pack("<H", _ZSTD) + whole[at + 2 :])
    assert lines(path) == [SAMPLE]


def test_a_member_that_is_no_json_is_one_record(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", **{"samples/1.json": b'{"id":\n 1', "samples/2.json": b"{}"})
    assert unpacked(path, path.name).read_bytes().splitlines() == [b'{"id": 1', b"{}"]


def test_an_archive_without_samples_is_refused_as_pickles_are(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", **{"archive/data.pkl": b"x"})
    with pytest.raises(InputError, match="Pickles are never loaded"):
        unpacked(path, path.name)


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", **{"samples/1.json": b"{}"})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"^a\.eval is damaged: .*expected a whole zip archive"):
        unpacked(path, path.name)


def test_lists_that_hold_no_records_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [], "samples": [1, 2], "data": [{"role": "user"}]}\n')
    assert unpacked(path, path.name) == path
