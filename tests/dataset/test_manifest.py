"""Manifests of long plans have another text, and say the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from tokscore.dataset.errors import InputError
from tokscore.dataset.manifest import (
    INDENTED_PARTS,
    InputFile,
    Manifest,
    Part,
    TokenizerIdentity,
    read_manifest,
)
from tokscore.dataset.schema import DatasetKind


def manifest_of(n_parts: int) -> Manifest:
    parts = [
        Part(i, 0, 10 * i, 10 * i + 10, i + 1, {"7": "}, {\n"} if i == 2 else {}) for i in range(n_parts)
    ]
    return Manifest(
        kind=DatasetKind.TOKENS,
        tokscore_version="0",
        settings={"b": 1, "a": None, "é": "x"},
        tokenizer=TokenizerIdentity("t", None, "1", "2", 3),
        model=None,
        inputs=[InputFile("a.jsonl", 10 * n_parts, "3")],
        parts=parts,
    ).sealed()


@pytest.mark.parametrize("n_parts", [3, INDENTED_PARTS, INDENTED_PARTS + 1])
def test_manifests_say_the_same_however_long_they_are(tmp_path: Path, n_parts: int) -> None:
    manifest = manifest_of(n_parts)
    (tmp_path / "manifest.json").write_bytes(manifest.to_json())
    assert read_manifest(tmp_path) == manifest
    # As it was written before, and by hand.
    for indent in (2, None):
        (tmp_path / "manifest.json").write_text(json.dumps(msgspec.to_builtins(manifest), indent=indent))
        assert read_manifest(tmp_path) == manifest


def test_the_hash_is_of_the_plan_with_sorted_keys() -> None:
    manifest = manifest_of(3)
    planned = msgspec.to_builtins(manifest)
    for name in ("plan_hash", "engine_details", "tokenizer_details"):
        del planned[name]
    text = json.dumps(planned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == manifest.plan_hash


@pytest.mark.parametrize("n_parts", [3, INDENTED_PARTS + 1])
def test_a_part_that_was_changed_is_found(tmp_path: Path, n_parts: int) -> None:
    text = manifest_of(n_parts).to_json().replace(b"20", b"21", 1)
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(InputError, match="was changed after it was written"):
        read_manifest(tmp_path)


def test_fields_of_later_versions_are_part_of_the_hash(tmp_path: Path) -> None:
    content = msgspec.to_builtins(manifest_of(3)) | {"later": [1, 2]}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="was changed after it was written"):
        read_manifest(tmp_path)
