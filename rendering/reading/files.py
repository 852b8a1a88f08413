"""Conversation files opened for reading: unpacked, in one format, one record a line."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.dataset.files import location, temporary_copy, text_name
from tokscore.dataset.stores.path import StorePath
from tokscore.rendering.conversations.conversation import decode_record
from tokscore.rendering.reading.formats import detect_format, load_format
from tokscore.rendering.reading.formats.batch_files import batch_pairs
from tokscore.rendering.reading.formats.format import Format
from tokscore.rendering.reading.formats.mapped import NAME as MAPPED
from tokscore.rendering.reading.formats.mapped import check_map
from tokscore.rendering.reading.record_names import RecordName, record_name
from tokscore.rendering.reading.unpacking import spool, unpacked

STDIN = "-"
_TRIED_FILES, _TRIED_LINES = 8, 50


class Files(NamedTuple):
    """Files with one record a line.

    Attributes:
        paths: Files to read; of standard input and compressed files, temporary copies.
        names: As records and manifests call them.
        places: The inputs as they were named.
        format: Of all records.
        is_format_given: The user named it.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
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


def open_files(inputs: Sequence[str], input_format: str | Format | None = None) -> Files:
    """Unpack the inputs and find their format.

    Args:
        inputs: Paths, also of files compressed with gzip or zstd; `-` is standard input.
        input_format: One of `formats.FORMATS`, or a map as `mapped_format` reads it; by default the format of
            the first record that looks like one, `openai` where none does.

    Raises:
        UsageError: There is no such format, or the map does not fit the first record.
        InputError: A file is missing or damaged.
    """
    given_format = load_format(input_format) if isinstance(input_format, str) else input_format
    given = [_standard_input() if name == STDIN else _existing(name) for name in inputs]
    names = ["stdin" if name == STDIN else text_name(location(name).name) for name in inputs]
    asked = None if given_format is None else given_format.name
    whole = [unpacked(path, name, asked) for path, name in zip(given, names, strict=True)]
    sources = batch_pairs(whole, names)
    paths = tuple(source.path for source in sources)
    names = [names[source.input_index] for source in sources]
    if given_format is not None and given_format.name == MAPPED:
        _check_map(given_format, paths, names)
    return Files(
        paths,
        tuple(names),
        tuple(location(inputs[source.input_index]) for source in sources),
        given_format or _find_format(paths),
        given_format is not None,
    )


def numbered_lines(files: Files) -> Iterator[tuple[int, Line]]:
    """Index of the file and line of every record, by the name that it gives itself."""
    for index, (path, name) in enumerate(zip(files.paths, files.names, strict=True)):
        with path.open("rb") as handle:
            for number, content in enumerate(handle, 1):
                line = without_mark(content, number)
                if line.strip():
                    yield index, Line(number, own_id(record_name(line, files.format), name, number), line)


def own_id(found: RecordName, name: str, number: int) -> str:
    """The name that the record gives itself, otherwise `basename:line`."""
    return found.conversation_id or f"{name}:{number}"


def without_mark(line: bytes, number: int) -> bytes:
    """The line without the byte order mark that some editors put before the first."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


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
                yield number, decode_record(without_mark(line, number))
            except ConversationError:
                continue


def _standard_input() -> Path:
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"{STDIN} is standard input, which is closed; expected conversations in it.")
    return spool(sys.stdin.buffer)


def _existing(name: str) -> Path:
    path = location(name)
    if isinstance(path, StorePath):
        return _fetched(path)
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


def _fetched(path: StorePath) -> Path:
    """A temporary copy of a file of a store."""
    try:
        return temporary_copy(lambda copy: copy.writelines(path.chunks()))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; expected a file of conversations.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
