"""The original records of chosen conversations, written as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
import polars as pl

from tokscore.analytics.selection.choosing import Selection
from tokscore.analytics.selection.metrics import PLACE_COLUMNS
from tokscore.dataset.errors import InputError, UsageError, counted
from tokscore.dataset.files import check_is_text
from tokscore.dataset.manifest import InputFile, Manifest, read_manifest
from tokscore.dataset.writing import temporary_name
from tokscore.rendering.reading.formats.mapped import NAME as MAPPED
from tokscore.rendering.reading.formats.mapped import given_format
from tokscore.rendering.reading.plan import Plan, plan_files, read_lines

if TYPE_CHECKING:
    pass

_CODECS = {".gz": "gzip", ".zst": "zstd"}
_PARQUET = ".parquet"


def find_files(selection: Selection) -> list[Path]:
    """The files that a dataset was made from, where they lie in the working directory or beside the dataset.

    Raises:
        InputError: One is in neither.
    """
    folders = [Path(), selection.dataset.root.resolve().parent]
    found = []
    for name in selection.frame["source_file"].unique(maintain_order=True):
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            raise InputError(
                f"{selection.dataset.root} was made from {name}, which is not in the working directory nor "
                "beside the dataset; expected the file.\nName the files behind the dataset: DATASET FILE..."
            )
        found.append(path)
    return found


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
        UsageError: `out` or `dropped` exists.
        InputError: The files are not those of the dataset.
    """
    for path in filter(None, (out, dropped)):
        if path.exists():
            raise UsageError(f"{path} exists already; expected a new file. Choose another name.")
    settings = selection.dataset.manifest.settings
    name, fields = settings.get("input_format"), settings.get("map")
    mapped = str(fields) if name == MAPPED and fields is not None else None
    plan = plan_files(list(map(str, files)), given_format(None if mapped else str(name), mapped))
    _check_files(selection, plan)
    is_parquet = out.suffix == _PARQUET
    kept = _kept_lines(selection, plan, read_records=not is_parquet)
    if is_parquet:
        _copy_rows(plan, kept, out)
    else:
        with _output(out) as file:
            for _, _, content in kept:
                file.write(content if content.endswith(b"\n") else content + b"\n")
    if dropped is not None:
        _write_dropped(selection, dropped)


def _check_files(selection: Selection, plan: Plan) -> None:
    """Refuse files of which the dataset knows that they are others."""
    inputs = _inputs(selection.dataset.root, selection.dataset.manifest)
    if inputs is None:
        return
    given = {(file.name, file.sha256) for file in plan.inputs}
    for file in inputs:
        if (file.name, file.sha256) not in given:
            is_there = any(each.name == file.name for each in plan.inputs)
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


def _kept_lines(selection: Selection, plan: Plan, *, read_records: bool) -> Iterator[tuple[int, int, bytes]]:
    """File, line and content of every record that is kept.

    Raises:
        InputError: The records of the files are not those of the dataset.
    """
    places = {
        conversation_id: (file, line, reason is None)
        for conversation_id, file, line, reason in selection.frame.select(
            *PLACE_COLUMNS, "reason"
        ).iter_rows()
    }
    n_found = 0
    for part in plan.parts:
        name = plan.inputs[part.file].name
        for line in read_lines(plan, part):
            place = places.get(line.conversation_id)
            is_failed = place is not None and not place[2]
            if place is None or (not is_failed and place[:2] != (name, line.number)):
                found = "does not have" if place is None else f"has from {place[0]}:{place[1]}"
                raise InputError(
                    f"{name}:{line.number} is {line.conversation_id!r}, which {selection.dataset.root} "
                    f"{found}; expected the files that it was made from, all of them and in the same order."
                )
            n_found += 1
            if place[2]:
                yield part.file, line.number, line.content if read_records else b""
    if n_found != len(places):
        raise InputError(
            f"the files have {counted(n_found, 'record')}, {selection.dataset.root} has "
            f"{len(places):,}; expected all files that it was made from."
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
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


def _copy_rows(plan: Plan, kept: Iterator[tuple[int, int, bytes]], out: Path) -> None:
    """Write the rows of Parquet files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    for place in plan.places:
        check_is_text(place)
    numbers: list[list[int]] = [[] for _ in plan.inputs]
    for file, number, _ in kept:
        numbers[file].append(number - 1)
    check_is_text(out)
    aside, writer = temporary_name(out), None
    try:
        for place, rows in zip(plan.places, numbers, strict=True):
            wanted, start = np.array(rows, np.int64), 0
            try:
                table = pq.ParquetFile(place)
            except (OSError, pa.ArrowException) as error:
                raise UsageError(
                    f"{out} is to be Parquet, and {place.name} is not; expected Parquet files alone, or "
                    "another ending such as .jsonl."
                ) from error
            with table:
                if writer is None:
                    writer = pq.ParquetWriter(aside, table.schema_arrow, compression="zstd")
                elif table.schema_arrow != writer.schema:
                    raise UsageError(
                        f"{place.name} has other columns than the files before it; expected the same for one "
                        "Parquet file. Write .jsonl instead."
                    )
                for batch in table.iter_batches():
                    here = wanted[(wanted >= start) & (wanted < start + len(batch))] - start
                    start += len(batch)
                    if len(here):
                        writer.write_batch(batch.take(pa.array(here)))
        if writer is not None:
            writer.close()
            aside.replace(out)
    finally:
        if writer is not None:
            writer.close()
        aside.unlink(missing_ok=True)


def _write_dropped(selection: Selection, path: Path) -> None:
    dropped = selection.frame.filter(pl.col("reason").is_not_null())
    with _output(path) as file:
        for row in dropped.iter_rows(named=True):
            file.write(msgspec.json.encode(row) + b"\n")
