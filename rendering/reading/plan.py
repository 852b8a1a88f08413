"""Divides conversation files into parts by byte ranges and gives every record its id."""

from __future__ import annotations

import codecs
import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.files import text_name
from tokscore.dataset.manifest import InputFile, Part
from tokscore.rendering.conversations.conversation import decode_record
from tokscore.rendering.reading.formats import detect_format, load_format
from tokscore.rendering.reading.formats.batch_files import batch_pairs
from tokscore.rendering.reading.formats.format import Format
from tokscore.rendering.reading.formats.mapped import NAME as MAPPED
from tokscore.rendering.reading.formats.mapped import check_map
from tokscore.rendering.reading.record_names import RecordName, record_name
from tokscore.rendering.reading.unpacking import spool, unpacked

PART_BYTES = 4 * 2**20
STDIN = "-"
_TRIED_FILES, _TRIED_LINES = 8, 50


class Plan(NamedTuple):
    """The files to read, divided into parts.

    Attributes:
        paths: Files to read; of standard input and compressed files, temporary copies.
        inputs: The same as they enter the manifest.
        parts: In order; together they cover every line once.
        n_records: Lines that are not blank.
        renamed: Ids that were taken already, with the id given instead.
        places: The inputs as they were named.
        format: Of all records.
        is_format_given: The user named it.
    """

    paths: tuple[Path, ...]
    inputs: tuple[InputFile, ...]
    parts: tuple[Part, ...]
    n_records: int
    renamed: tuple[tuple[str, str], ...]
    places: tuple[Path, ...]
    format: Format
    is_format_given: bool


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


def _own_id(found: RecordName, name: str, number: int) -> str:
    """The name that the record gives itself, otherwise `basename:line`."""
    return found.conversation_id or f"{name}:{number}"


def _without_mark(line: bytes, number: int) -> bytes:
    """The line without the byte order mark that some editors put before the first."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def plan_files(
    inputs: Sequence[str], input_format: str | Format | None = None, *, part_bytes: int = PART_BYTES
) -> Plan:
    """Read the inputs once and divide them.

    Args:
        inputs: Paths, also of files compressed with gzip or zstd; `-` is standard input.
        input_format: One of `formats.FORMATS`, or a map as `mapped_format` reads it; by default the format of
            the first record that looks like one, `openai` where none does.
        part_bytes: A part ends with the line in which it reaches this size, or with the last of the
            neighbouring records that have the same `group` as that line.

    Raises:
        UsageError: There is no such format, or the map does not fit the first record.
        InputError: A file is missing, empty or damaged, or there are no inputs.
    """
    given_format = load_format(input_format) if isinstance(input_format, str) else input_format
    given = [_standard_input() if name == STDIN else _existing(name) for name in inputs]
    names = ["stdin" if name == STDIN else text_name(Path(name).name) for name in inputs]
    asked = None if given_format is None else given_format.name
    whole = [unpacked(path, name, asked) for path, name in zip(given, names, strict=True)]
    sources = batch_pairs(whole, names)
    paths = tuple(source.path for source in sources)
    names = [names[source.input_index] for source in sources]
    places = tuple(Path(inputs[source.input_index]) for source in sources)
    if given_format is not None and given_format.name == MAPPED:
        _check_map(given_format, paths, names)
    chosen = given_format or _find_format(paths)
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
                record = record_name(_without_mark(line, number), chosen) if line.strip() else None
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
    return Plan(
        paths,
        tuple(files),
        tuple(parts),
        n_records,
        tuple(renamed),
        places,
        chosen,
        given_format is not None,
    )


def _find_format(paths: Sequence[Path]) -> Format:
    for path in paths[:_TRIED_FILES]:
        for _, record in _first_records(path):
            found = detect_format(record)
            if found is not None:
                return found
    return load_format("openai")


def _check_map(chosen: Format, paths: Sequence[Path], names: Sequence[str]) -> None:
    for path, name in zip(paths[:_TRIED_FILES], names, strict=False):
        for number, record in _first_records(path):
            check_map(chosen, record, f"{name}:{number}")
            return


def _first_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:  # Any: JSON values
    """Lines with their numbers that are JSON objects, among the first."""
    with path.open("rb") as handle:
        for number, line in enumerate(islice(handle, _TRIED_LINES), 1):
            try:
                yield number, decode_record(_without_mark(line, number))
            except ConversationError:
                continue


def _unused(wanted: str, taken: set[str], repeats: dict[str, int]) -> str:
    """An id that is not taken; `repeats` keeps the last number tried for each, as lower ones stay taken."""
    unique, n = wanted, repeats.get(wanted, 1)
    while unique in taken:
        n += 1
        unique = f"{wanted}#{n}"
        repeats[wanted] = n
    return unique


def _standard_input() -> Path:
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"{STDIN} is standard input, which is closed; expected conversations in it.")
    return spool(sys.stdin.buffer)


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
                identifier = part.renamed.get(str(number)) or _own_id(
                    record_name(line, plan.format), name, number
                )
                yield Line(number, identifier, line)
            number += 1
