"""Divides conversation files into parts by byte ranges and gives every record its id."""

from __future__ import annotations

import atexit
import codecs
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tokscore.rendering.errors import InputError
from tokscore.rendering.manifest import InputFile, Part

if TYPE_CHECKING:
    from _typeshed import SupportsRead

PART_BYTES = 4 * 2**20
STDIN = "-"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COPIED_BYTES = 2**20


class Plan(NamedTuple):
    """What is read, and in which parts.

    Attributes:
        paths: Files to read; of standard input and compressed files, temporary copies.
        inputs: The same as they enter the manifest.
        parts: In order; together they cover every line once.
        n_records: Lines that are not blank.
        renamed: Ids that were taken already, with the id given instead.
    """

    paths: tuple[Path, ...]
    inputs: tuple[InputFile, ...]
    parts: tuple[Part, ...]
    n_records: int
    renamed: tuple[tuple[str, str], ...]


class Line(NamedTuple):
    """One line of an input.

    Attributes:
        number: 1-based.
        conversation_id: Unique in the plan.
        content: Raw bytes.
    """

    number: int
    conversation_id: str
    content: bytes


class _Record(msgspec.Struct):
    """The only field that planning needs."""

    id: str | int | None = None


_ID = msgspec.json.Decoder(_Record)


def own_id(line: bytes, name: str, number: int) -> str:
    """The record's `id`, otherwise `basename:line`."""
    try:
        given = _ID.decode(line).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        given = None
    return f"{name}:{number}" if given in (None, "") else str(given)


def _without_mark(line: bytes, number: int) -> bytes:
    """The line without the byte order mark that some editors put before the first."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def plan_files(inputs: Sequence[str], *, part_bytes: int = PART_BYTES) -> Plan:
    """Read the inputs once and divide them.

    Args:
        inputs: Paths, also of files compressed with gzip or zstd; `-` is standard input.
        part_bytes: A part ends with the line in which it reaches this size.

    Raises:
        InputError: A file is missing, empty or damaged, or there are no inputs.
    """
    given = [_spool(sys.stdin.buffer) if name == STDIN else _existing(name) for name in inputs]
    names = ["stdin" if name == STDIN else Path(name).name for name in inputs]
    paths = tuple(_unpacked(path, name) for path, name in zip(given, names, strict=True))
    taken: set[str] = set()
    files: list[InputFile] = []
    parts: list[Part] = []
    renamed: list[tuple[str, str]] = []
    n_records = 0
    for index, (path, name) in enumerate(zip(paths, names, strict=True)):
        digest = hashlib.sha256()
        start = position = 0
        first_line = number = 1
        here: dict[str, str] = {}

        def close_part(stop: int, index: int = index) -> None:
            parts.append(Part(len(parts), index, start, stop, first_line, dict(here)))  # noqa: B023
            here.clear()  # noqa: B023

        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                digest.update(line)
                position += len(line)
                if line.strip():
                    n_records += 1
                    wanted = own_id(_without_mark(line, number), name, number)
                    unique = _unused(wanted, taken)
                    taken.add(unique)
                    if unique != wanted:
                        here[str(number)] = unique
                        renamed.append((wanted, unique))
                if position - start >= part_bytes:
                    close_part(position)
                    start, first_line = position, number + 1
        if position > start:
            close_part(position)
        if not position:
            raise InputError(f"{name} is empty; expected one conversation a line, as JSON.")
        files.append(InputFile(name, position, digest.hexdigest()))
    if not n_records:
        raise InputError(f"{', '.join(names)}: only blank lines; expected one conversation a line, as JSON.")
    return Plan(paths, tuple(files), tuple(parts), n_records, tuple(renamed))


def _unused(wanted: str, taken: set[str]) -> str:
    unique, n = wanted, 1
    while unique in taken:
        n += 1
        unique = f"{wanted}#{n}"
    return unique


def _existing(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name} is a directory without manifest.json; expected a JSONL file or a dataset.")
    if not path.exists():
        raise InputError(f"{name} does not exist; expected a JSONL file of conversations.")
    if path.is_file():
        return path
    with path.open("rb") as pipe:
        return _spool(pipe)


def _unpacked(path: Path, name: str) -> Path:
    """The file itself, or a temporary copy of what is compressed in it: parts are read apart."""
    with path.open("rb") as handle:
        magic = handle.read(4)
    codec = next((codec for start, codec in _COMPRESSED.items() if magic.startswith(start)), None)
    if codec is None:
        return path
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
            return _spool(stream)
    except OSError as error:
        raise InputError(f"{name} is damaged: {error}. Compress it again.") from error


def _spool(stream: SupportsRead[bytes]) -> Path:
    """A temporary copy, deleted when the process ends."""
    with tempfile.NamedTemporaryFile(prefix="tokscore-", suffix=".jsonl", delete=False) as spool:
        path = Path(spool.name)
        atexit.register(path.unlink, missing_ok=True)
        shutil.copyfileobj(stream, spool, _COPIED_BYTES)
    return path


def read_lines(plan: Plan, part: Part) -> Iterator[Line]:
    """The lines of one part that are not blank."""
    name = plan.inputs[part.file].name
    with plan.paths[part.file].open("rb") as handle:
        handle.seek(part.start)
        number = part.first_line
        while handle.tell() < part.stop:
            line = handle.readline()
            if not line:
                raise InputError(f"{name} became shorter while it was read; run again when it is complete.")
            line = _without_mark(line, number)
            if line.strip():
                identifier = part.renamed.get(str(number)) or own_id(line, name, number)
                yield Line(number, identifier, line)
            number += 1
