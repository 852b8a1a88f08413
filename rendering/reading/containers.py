"""Records that stand inside something larger: a list in a file of results, or the files of a zip archive."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tokscore.dataset.errors import InputError
from tokscore.dataset.files import is_of_machine, temporary_copy
from tokscore.rendering.reading.formats import all_formats

ZIP = b"PK\x03\x04"
_ZSTD = 93  # method of zip archives, which Python's zipfile lacks before 3.14
_NAME_LENGTHS = struct.Struct("<HH")
_NAME_LENGTHS_AT, _HEADER_BYTES = 26, 30
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_RECORD: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])  # Any: JSON values
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def archive_records(path: Path, name: str) -> Path | None:
    """A copy with one record a line of the zip archive of a format, None for other archives.

    Args:
        path: The archive.
        name: As the user knows it.

    Raises:
        InputError: It is damaged.
    """
    patterns = {each.archive_members for each in all_formats() if each.archive_members}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [
                each
                for each in archive.infolist()
                if any(fnmatch(each.filename, pattern) for pattern in patterns)
            ]
            if not members:
                return None
            return temporary_copy(
                lambda copy: copy.writelines(_one_line(_content(archive, each)) for each in members)
            )
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if is_of_machine(error):
            raise
        raise InputError(f"{name} is damaged: {error}; expected a whole zip archive.") from error


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type != _ZSTD:
        return archive.read(member)
    import pyarrow as pa

    file = archive.fp
    assert file is not None
    file.seek(member.header_offset + _NAME_LENGTHS_AT)
    lengths = _NAME_LENGTHS.unpack(file.read(_NAME_LENGTHS.size))
    file.seek(member.header_offset + _HEADER_BYTES + sum(lengths))
    compressed = pa.BufferReader(file.read(member.compress_size))
    with pa.CompressedInputStream(compressed, "zstd") as stream:
        content: bytes = stream.read()
    return content


def _one_line(content: bytes) -> bytes:
    try:
        return msgspec.json.format(content, indent=-1) + b"\n"
    except (msgspec.MsgspecError, RecursionError):
        return b" ".join(content.split()) + b"\n"  # it is reported once as no JSON


def listed_records(path: Path) -> Path:
    """A copy with a line for each record in the lists of a file of results; other files as they are.

    Args:
        path: One JSON value a line.
    """
    with path.open("rb") as handle:
        key = _records_key(next((line for line in handle if line.strip()), b""))
    if key is None:
        return path

    def write(copy: BinaryIO) -> None:
        with path.open("rb") as handle:
            for line in handle:
                copy.writelines(_listed(line, key))

    return temporary_copy(write)


def _records_key(line: bytes) -> str | None:
    """The key of the list of records in an object, None where it is a record itself, or no object."""
    keys = {each.records_key: each for each in all_formats() if each.records_key}
    if not any(f'"{key}"'.encode() in line for key in keys):
        return None
    found = _decoded(line)
    for key, chosen in keys.items():
        if key in found and (records := _elements(found[key])):
            try:
                first = _RECORD.decode(records[0])
            except _NO_JSON:
                continue
            if chosen.matches(first):
                return key
    return None


def _listed(line: bytes, key: str) -> Iterator[bytes]:
    found = _decoded(line)
    if key not in found:
        yield line
        return
    for record in _elements(found[key]):
        yield bytes(record) + b"\n"


def _decoded(line: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(line)
    except _NO_JSON:
        return {}


def _elements(value: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _LIST.decode(value)
    except _NO_JSON:
        return []
