"""Files of any layout, unpacked to one JSON record a line."""

from __future__ import annotations

import codecs
import json
import math
import mmap
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from tokscore.dataset.errors import InputError
from tokscore.dataset.files import is_of_machine, temporary_copy
from tokscore.rendering.conversations.conversation import CUT_ARRAY, CUT_FILE
from tokscore.rendering.reading.compression import decompressed
from tokscore.rendering.reading.containers import ZIP, archive_records, listed_records
from tokscore.rendering.reading.formats import all_formats
from tokscore.rendering.reading.parquet import only_present
from tokscore.rendering.reading.text_files import text_record

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import SupportsRead

_PARQUET = b"PAR1"
# Of pickles from protocol 2 on.
_PICKLED = re.compile(rb"\x80[\x02-\x05]")
_COPIED_BYTES = 2**20
# Places where the elements of an array may go on behind one that does not end; more are not tried.
_MAX_TRIES = 1_000
_BATCH_ROWS = 256
# A string without its end runs to the end of the file, so that brackets inside it are never taken for JSON's.
_STRING = rb'"(?:[^"\\]++|\\.)*+"?'
_STRING_OR_BRACKET = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_STRING_OR_NEWLINE = re.compile(_STRING + rb"|\n[ \t\r\n]*", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,\[\]{}\"]+", re.DOTALL)
_OBJECT_BEHIND_COMMA = re.compile(rb",\s*(?=\{)")
_BETWEEN = re.compile(rb"[\s,]*")
_SPACE = re.compile(rb"\s*")
_ABSENT = msgspec.Raw()
_RAW: msgspec.json.Decoder[msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw)


def unpacked(path: Path, name: str, input_format: str | None = None) -> Path:
    """The file itself where it holds one record a line, otherwise a temporary copy that does.

    Compressed files (gzip, zstd), Parquet files, files that are one JSON array, and files of JSON objects
    over several lines are unpacked, and so are lists of records inside an object and the zip archives of
    formats. An array becomes one element a line; an array of messages is one conversation, and a file of
    plain text one record. Memory does not grow with the file, but with its largest record.

    Behind all that can be read of a compressed file that is damaged or cut, one line says so.

    Args:
        path: To read.
        name: As the user knows it.
        input_format: That the user asked for, None without.

    Raises:
        InputError: The Parquet file is damaged, or it is a pickle, or text that is no UTF-8.
    """
    path, damage = decompressed(path)
    found = listed_records(_as_lines(path, name, input_format))
    if damage:
        _mark_cut(found, damage)
    return found


def _as_lines(path: Path, name: str, input_format: str | None) -> Path:
    with path.open("rb") as handle:
        magic = handle.read(len(_PARQUET))
        if magic == _PARQUET:
            return _from_parquet(path, name)
        found = archive_records(path, name) if magic == ZIP else None
        if found is not None:
            return found
        # PyTorch and numpy keep pickles in zip archives.
        if magic == ZIP or _PICKLED.match(magic):
            raise InputError(
                f"{name} is a pickle or a zip archive, as torch.save writes them; expected JSON Lines, a "
                "JSON array, Parquet or the log of an evaluation.\nPickles are never loaded, since that can "
                "run any code. Write its records as JSON Lines."
            )
        handle.seek(0)
        if not handle.read(1):
            return path
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return text_record(content, name, input_format) or _from_json(content) or path


def spool(stream: SupportsRead[bytes]) -> Path:
    """A temporary copy, deleted when the process ends."""
    return temporary_copy(lambda copy: shutil.copyfileobj(stream, copy, _COPIED_BYTES))


def _mark_cut(path: Path, why: str) -> None:
    """Put one line that says why there are no more of them in the place of a last line that is cut."""
    mark = CUT_FILE + why.encode() + b"\n"
    if not path.stat().st_size:
        path.write_bytes(mark)
        return
    with path.open("r+b") as handle:
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = len(content) - (content[-1:] == b"\n")
            start = content.rfind(b"\n", 0, end) + 1
            is_whole = _is_json(content, start, end)
        handle.seek(end if is_whole else start)
        handle.write(b"\n" + mark if is_whole else mark)
        handle.truncate()


def _from_parquet(path: Path, name: str) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(copy: BinaryIO) -> None:
        with path.open("rb") as file, pq.ParquetFile(file) as table:
            open_keys = frozenset[str]().union(*(each.open_keys for each in all_formats()))
            present = only_present(pa.struct(table.schema_arrow), open_keys)
            for batch in table.iter_batches(_BATCH_ROWS):
                encode = _encoded if all(map(_is_finite, batch.columns)) else _encoded_with_infinities
                copy.writelines(encode(present(row)) for row in batch.to_pylist())

    try:
        return temporary_copy(write)
    except (OSError, pa.ArrowException) as error:
        if is_of_machine(error):
            raise
        raise InputError(f"{name} is damaged: {error}; expected a Parquet file.") from error


def _is_finite(column: pa.Array) -> bool:
    """Whether it holds no NaN and no infinity, at any depth."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        return all(map(_is_finite, column.flatten()))
    if pa.types.is_map(column.type):
        return _is_finite(column.items)
    if pa.types.is_nested(column.type):
        return _is_finite(column.flatten())
    if not pa.types.is_floating(column.type):
        return True
    return pc.all(pc.is_finite(column)).as_py() is not False


def _encoded(row: Mapping[str, object]) -> bytes:
    # Columns of other types than JSON has, such as durations, are no part of a conversation.
    return msgspec.json.encode(row, enc_hook=str) + b"\n"


def _encoded_with_infinities(row: Mapping[str, object]) -> bytes:
    """As Python's json writes what JSON lacks; NaN alone in a column stands for no value, as in pandas."""
    found = {
        key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()
    }
    return json.dumps(found, default=str).encode() + b"\n"


def _from_json(content: mmap.mmap) -> Path | None:
    """A copy of the array or the objects that the content is, None where it has one record a line."""
    mark = len(codecs.BOM_UTF8) if content[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8 else 0
    start = _end(_SPACE, content, mark)
    first = content[start : start + 1]
    if first == b"[":
        return _from_array(content, start)
    if first == b"{" and _is_one_object(content, start):
        return temporary_copy(lambda copy: _write_line(content, start, len(content), copy))
    if first == b"{" and _is_indented(content, start):
        return temporary_copy(lambda copy: _write_objects(content, start, copy))
    return None


def _from_array(content: mmap.mmap, start: int) -> Path:
    if _holds_messages(content, start):

        def write(copy: BinaryIO) -> None:
            copy.write(b'{"messages": ')
            _write_line(content, start, len(content), copy, end=b"}\n")

    else:

        def write(copy: BinaryIO) -> None:
            for first, stop in _elements(content, start):
                if first == stop:
                    copy.write(CUT_ARRAY + b"\n")
                else:
                    _write_line(content, first, stop, copy)

    return temporary_copy(write)


class _Message(msgspec.Struct):
    """The fields that tell a message from a record."""

    role: str
    content: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT


def _holds_messages(content: mmap.mmap, start: int) -> bool:
    """Whether the array is one conversation."""
    first, stop = next(_elements(content, start), (0, 0))
    try:
        message = msgspec.json.decode(content[first:stop], type=_Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    is_empty = message.content == message.tool_calls == _ABSENT
    return message.messages == _ABSENT and not is_empty


def _elements(content: mmap.mmap, start: int) -> Iterator[tuple[int, int]]:
    """Where the elements of an array are, half-open; lines behind the array count as more of them.

    Where the content ends between two elements without closing the array, the last one is empty. An element
    that does not end goes on to the next object with all keys of the first element.
    """
    at = _end(_BETWEEN, content, start + 1)
    first = stop = at
    keys: set[str] | None = None
    while at < len(content):
        if content[at : at + 1] == b"]":
            break
        first, stop = at, _end_of_value(content, at)
        if keys is None:
            keys = _keys(content, first, stop)
        if stop == len(content) and not _is_json(content, first, stop):
            stop = _next_element(content, first, keys or set()) or stop
        yield first, stop
        at = _end(_BETWEEN, content, stop)
    else:
        if first == stop or _is_json(content, first, stop):
            yield len(content), len(content)
    at += 1
    while at < len(content):
        newline = content.find(b"\n", at)
        stop = len(content) if newline < 0 else newline
        if content[at:stop].strip():
            yield at, stop
        at = stop + 1


def _keys(content: mmap.mmap, start: int, stop: int) -> set[str] | None:
    """The keys of an object, None where it is none."""
    try:
        return {*msgspec.json.decode(content[start:stop], type=dict[str, msgspec.Raw])}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _next_element(content: mmap.mmap, start: int, keys: set[str]) -> int | None:
    """Where the elements go on behind one that does not end; None where that cannot be told."""
    for found in islice(_OBJECT_BEHIND_COMMA.finditer(content, start + 1), _MAX_TRIES if keys else 0):
        stop = _end_of_value(content, found.end())
        if keys <= (_keys(content, found.end(), stop) or set()):
            return found.start()
    return None


def _end_of_value(content: mmap.mmap, start: int) -> int:
    """Where the value that starts there ends; the end of the content where it does not."""
    if content[start : start + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(content, start)
        return start + 1 if scalar is None else scalar.end()
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(content, start):
        mark = content[found.start()]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
            if not depth:
                return found.end()
    return len(content)


def _write_line(content: mmap.mmap, start: int, stop: int, copy: BinaryIO, *, end: bytes = b"\n") -> None:
    """Write a value in one line: as it is, or without the space outside strings where it has newlines."""
    value = content[start:stop]
    if b"\n" in value:
        try:
            value = msgspec.json.format(value, indent=-1)
        except (msgspec.MsgspecError, RecursionError):
            # It has to stay one line, so that it is reported once as no JSON.
            value = _STRING_OR_NEWLINE.sub(_without_newline, value)
    copy.write(value.rstrip() + end)


def _without_newline(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0].startswith(b'"') else b" "


def _is_one_object(content: mmap.mmap, start: int) -> bool:
    """Whether it is one JSON value, and its first line is none."""
    newline = content.find(b"\n", start)
    if newline < 0 or _is_json(content, start, newline):
        return False
    return _is_json(content, start, len(content))


def _is_indented(content: mmap.mmap, start: int) -> bool:
    """Whether its first line is the bracket of an object that goes on in the next, which is no record."""
    newline = content.find(b"\n", start)
    behind = _end(_SPACE, content, newline + 1)
    return content[start:newline].strip() == b"{" and content[behind : behind + 1] != b"{"


def _write_objects(content: mmap.mmap, start: int, copy: BinaryIO) -> None:
    """Write values that follow each other, one a line; the last as far as it goes."""
    while start < len(content):
        stop = _end_of_value(content, start)
        _write_line(content, start, stop, copy)
        start = _end(_BETWEEN, content, stop)


def _is_json(content: mmap.mmap, start: int, stop: int) -> bool:
    with memoryview(content) as whole, whole[start:stop] as view:
        try:
            _RAW.decode(view)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
    return True


def _end(pattern: re.Pattern[bytes], content: mmap.mmap, start: int) -> int:
    found = pattern.match(content, start)
    assert found is not None  # the patterns match nothing, too
    return found.end()
