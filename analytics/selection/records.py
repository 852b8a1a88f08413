"""The original records of chosen conversations, written as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec
import polars as pl

from tokscore.analytics.selection.expected import ExpectedRecords
from tokscore.analytics.selection.parquet_rows import PARQUET, copy_rows
from tokscore.analytics.selection.selected import Selection
from tokscore.dataset.errors import InputError, counted
from tokscore.dataset.files import check_is_new_file, check_is_text, output_location
from tokscore.dataset.manifest import InputFile, Manifest, read_manifest
from tokscore.dataset.writing import put_in_place, temporary_name
from tokscore.rendering.reading.files import Files, Line, numbered_lines, open_files
from tokscore.rendering.reading.formats.mapped import NAME as MAPPED
from tokscore.rendering.reading.formats.mapped import given_format

_CODECS = {".gz": "gzip", ".zst": "zstd"}


def find_files(selection: Selection) -> list[Path]:
    """The files that a dataset was made from, where they lie in the working directory or beside the dataset.

    Raises:
        InputError: One is in neither.
    """
    folders = [Path(), selection.dataset.root.resolve().parent]
    found = []
    for name in _source_files(selection):
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            raise InputError(
                f"{selection.dataset.root} was made from {name}, which is not in the working directory nor "
                "beside the dataset; expected the file.\nName the files behind the dataset: DATASET FILE..."
            )
        found.append(path)
    return found


def _source_files(selection: Selection) -> Iterable[str]:
    """Their names, each once."""
    frames = chain(selection.numbers.frames(), selection.failed.frames())
    names = (frame["source_file"].unique(maintain_order=True) for frame in frames)
    return dict.fromkeys(chain.from_iterable(names))


def write_records(
    selection: Selection, files: Sequence[Path | str], out: Path, *, dropped: Path | None = None
) -> None:
    """Write the records of the conversations that are kept, one a line, byte by byte as in their files.

    Records of JSON arrays come without the space between their lines, rows of Parquet files as JSON; where
    `out` ends with `.parquet` and so do all files, rows are copied as they are. `.gz` and `.zst` compress.

    Args:
        selection: What is kept.
        files: All files that the dataset was made from, in any layout that `render` reads.
        out: New file.
        dropped: New file with a line for each other record: its place, why it is left out, and its numbers.

    Raises:
        UsageError: `out` or `dropped` exists, or is in no directory.
        InputError: The files are not those of the dataset.
    """
    out, dropped = output_location(out), None if dropped is None else output_location(dropped)
    for path in filter(None, (out, dropped)):
        check_is_new_file(path)
    settings = selection.dataset.manifest.settings
    name, fields = settings.get("input_format"), settings.get("map")
    mapped = str(fields) if name == MAPPED and fields is not None else None
    opened = open_files(list(map(str, files)), given_format(None if mapped else str(name), mapped))
    _check_files(selection, opened)
    kept = _kept_lines(selection, opened)
    if out.suffix == PARQUET:
        copy_rows(opened.places, ((file, line.number) for file, line in kept), out)
    else:
        with _output(out) as file:
            for _, line in kept:
                file.write(line.content if line.content.endswith(b"\n") else line.content + b"\n")
    if dropped is not None:
        _write_dropped(selection, dropped)


def _check_files(selection: Selection, files: Files) -> None:
    """Refuse files of which the dataset knows that they are others."""
    inputs = _inputs(selection.dataset.root, selection.dataset.manifest)
    if inputs is None:
        return
    given = set()
    for path, name in zip(files.paths, files.names, strict=True):
        with path.open("rb") as handle:
            given.add((name, hashlib.file_digest(handle, "sha256").hexdigest()))
    for file in inputs:
        if (file.name, file.sha256) not in given:
            is_there = file.name in files.names
            raise InputError(
                f"{file.name} {'has changed since' if is_there else 'is not among the files, but was when'} "
                f"{selection.dataset.root} was made; expected every file behind it, as it was."
            )


def _inputs(root: Path, manifest: Manifest) -> Sequence[InputFile] | None:
    """The files of conversations behind a dataset; None where it was made from one that is elsewhere."""
    if len(manifest.inputs) != 1 or manifest.inputs[0].size_bytes:
        return manifest.inputs
    tokens = root.resolve().parent / manifest.inputs[0].name
    try:
        found = read_manifest(tokens)
    except InputError:
        return None
    return _inputs(tokens, found) if found.plan_hash == manifest.inputs[0].sha256 else None


def _kept_lines(selection: Selection, files: Files) -> Iterator[tuple[int, Line]]:
    """File and line of every record that is kept.

    Raises:
        InputError: The records of the files are not those of the dataset.
    """
    root = selection.dataset.root
    expected = ExpectedRecords(selection)
    n_found = 0
    for index, line in numbered_lines(files):
        name = files.names[index]
        is_kept = expected.take(name, line.number, line.conversation_id)
        if is_kept is None:
            raise InputError(
                f"{name}:{line.number} is {line.conversation_id!r}, where {root} has {expected.following()}; "
                "expected the files that it was made from, all of them and in the same order."
            )
        n_found += 1
        if is_kept:
            yield index, line
    if n_found != selection.n_conversations:
        raise InputError(
            f"the files have {counted(n_found, 'record')}, {root} has {selection.n_conversations:,}; "
            "expected all files that it was made from."
        )


@contextmanager
def _output(out: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is whole."""
    import pyarrow as pa

    check_is_text(out)
    aside = temporary_name(out)
    try:
        if out.suffix in _CODECS:
            with pa.CompressedOutputStream(pa.OSFile(str(aside), "wb"), _CODECS[out.suffix]) as stream:
                yield stream
        else:
            with aside.open("wb") as file:
                yield file
        put_in_place(aside, out)
    finally:
        aside.unlink(missing_ok=True)


def _write_dropped(selection: Selection, path: Path) -> None:
    with _output(path) as file:
        for frame in selection.frames():
            for row in frame.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
                file.write(msgspec.json.encode(row) + b"\n")
