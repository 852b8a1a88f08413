"""Divides conversation files into parts by byte ranges and gives every record its id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokscore.dataset.errors import InputError
from tokscore.dataset.manifest import InputFile, Part
from tokscore.rendering.reading.files import Line, open_files, own_id, without_mark
from tokscore.rendering.reading.formats.format import Format
from tokscore.rendering.reading.record_names import record_name

PART_BYTES = 4 * 2**20


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
    files_read = open_files(inputs, input_format)
    paths, names, chosen = files_read.paths, files_read.names, files_read.format
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
                record = record_name(without_mark(line, number), chosen) if line.strip() else None
                is_full = position - start >= part_bytes
                if is_full and not (record and group is not None and record.group == group):
                    close_part(position)
                    start, first_line = position, number
                digest.update(line)
                position += len(line)
                if record is not None:
                    n_records += 1
                    group = record.group
                    wanted = own_id(record, name, number)
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
        files_read.places,
        chosen,
        files_read.is_format_given,
    )


def _unused(wanted: str, taken: set[str], repeats: dict[str, int]) -> str:
    """An id that is not taken; `repeats` keeps the last number tried for each, as lower ones stay taken."""
    unique, n = wanted, repeats.get(wanted, 1)
    while unique in taken:
        n += 1
        unique = f"{wanted}#{n}"
        repeats[wanted] = n
    return unique


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
            line = without_mark(line, number)
            if line.strip():
                identifier = part.renamed.get(str(number)) or own_id(
                    record_name(line, plan.format), name, number
                )
                yield Line(number, identifier, line)
            number += 1
