"""Divides conversation files into parts by byte ranges and gives every record its id."""

from __future__ import annotations

import codecs
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.manifest import InputFile, Part
from tokscore.rendering.conversations.conversation import decode_record
from tokscore.rendering.reading.files import spool, unpacked
from tokscore.rendering.reading.formats.batch_files import batch_pairs

PART_BYTES = 4 * 2**20
STDIN = "-"


class Plan(NamedTuple):
    """What is read, and in which parts.

    Attributes:
        paths: Files to read; of standard input and compressed files, temporary copies.
        inputs: The same as they enter the manifest.
        parts: In order; together they cover every line once.
        n_records: Lines that are not blank.
        renamed: Ids that were taken already, with the id given instead.
        places: The inputs as they were named.
    """

    paths: tuple[Path, ...]
    inputs: tuple[InputFile, ...]
    parts: tuple[Part, ...]
    n_records: int
    renamed: tuple[tuple[str, str], ...]
    places: tuple[Path, ...]


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
    """The only fields that planning needs, of whatever type: other formats may use the names otherwise."""

    id: object = None
    custom_id: object = None
    instance_id: object = None
    group: object = None


_RECORD = msgspec.json.Decoder(_Record)


def _peek(line: bytes) -> _Record:
    try:
        return _RECORD.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            found = decode_record(line)  # Python's JSON has infinities
        except ConversationError:
            return _Record()
        return _Record(*(found.get(name) for name in _Record.__struct_fields__))


def _own_id(record: _Record, name: str, number: int) -> str:
    """The record's `id`, `custom_id` of a batch or `instance_id` of an agent, otherwise `basename:line`."""
    given = (
        record.custom_id if isinstance(record.custom_id, str) else None,
        record.id if isinstance(record.id, (str, int)) and not isinstance(record.id, bool) else None,
        record.instance_id if isinstance(record.instance_id, str) else None,
    )
    return next((str(each) for each in given if each not in (None, "")), f"{name}:{number}")


def _without_mark(line: bytes, number: int) -> bytes:
    """The line without the byte order mark that some editors put before the first."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def plan_files(inputs: Sequence[str], *, part_bytes: int = PART_BYTES) -> Plan:
    """Read the inputs once and divide them.

    Args:
        inputs: Paths, also of files compressed with gzip or zstd; `-` is standard input.
        part_bytes: A part ends with the line in which it reaches this size, or with the last of the
            neighbouring records that have the same `group` as that line.

    Raises:
        InputError: A file is missing, empty or damaged, or there are no inputs.
    """
    given = [spool(sys.stdin.buffer) if name == STDIN else _existing(name) for name in inputs]
    names = ["stdin" if name == STDIN else Path(name).name for name in inputs]
    whole = [unpacked(path, name) for path, name in zip(given, names, strict=True)]
    sources = batch_pairs(whole, names)
    paths = tuple(source.path for source in sources)
    names = [names[source.input_index] for source in sources]
    places = tuple(Path(inputs[source.input_index]) for source in sources)
    taken: set[str] = set()
    repeats: dict[str, int] = {}
    files: list[InputFile] = []
    parts: list[Part] = []
    renamed: list[tuple[str, str]] = []
    n_records = 0
    for index, (path, name) in enumerate(zip(paths, names, strict=True)):
        digest = hashlib.sha256()
        start = position = 0
        first_line = number = 1
        here: dict[str, str] = {}
        group: object = None

        def close_part(stop: int, index: int = index) -> None:
            parts.append(Part(len(parts), index, start, stop, first_line, dict(here)))  # noqa: B023
            here.clear()  # noqa: B023

        with path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                record = _peek(_without_mark(line, number)) if line.strip() else None
                is_full = position - start >= part_bytes
                if is_full and not (record and group is not None and record.group == group):
                    close_part(position)
                    start, first_line = position, number
                digest.update(line)
                position += len(line)
                if record is not None:
                    n_records += 1
                    group = record.group
                    wanted = _own_id(record, name, number)
                    unique = _unused(wanted, taken, repeats)
                    taken.add(unique)
                    if unique != wanted:
                        here[str(number)] = unique
                        renamed.append((wanted, unique))
        if position > start:
            close_part(position)
        if not position:
            raise InputError(f"{name} is empty; expected one conversation a line, as JSON.")
        files.append(InputFile(name, position, digest.hexdigest()))
    if not n_records:
        raise InputError(f"{', '.join(names)}: only blank lines; expected one conversation a line, as JSON.")
    return Plan(paths, tuple(files), tuple(parts), n_records, tuple(renamed), places)


def _unused(wanted: str, taken: set[str], repeats: dict[str, int]) -> str:
    """An id that is not taken; `repeats` keeps the last number tried for each, as lower ones stay taken."""
    unique, n = wanted, repeats.get(wanted, 1)
    while unique in taken:
        n += 1
        unique = f"{wanted}#{n}"
        repeats[wanted] = n
    return unique


def _existing(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        raise InputError(
            f"{name} is a directory without manifest.json; expected a file of conversations or a dataset."
        )
    if not path.exists():
        raise InputError(f"{name} does not exist; expected a file of conversations.")
    if path.is_file():
        return path
    with path.open("rb") as pipe:
        return spool(pipe)


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
                identifier = part.renamed.get(str(number)) or _own_id(_peek(line), name, number)
                yield Line(number, identifier, line)
            number += 1
