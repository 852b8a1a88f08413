"""Decompression of gzip and zstd files, damaged ones as far as they can be read."""

from __future__ import annotations

import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tokscore.dataset.files import is_of_machine, temporary_copy

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COPIED_BYTES = 2**20
_READ_BYTES = 2**14
_GZIP = 16 + zlib.MAX_WBITS


def decompressed(path: Path) -> tuple[Path, str]:
    """A decompressed copy, as far as the file is whole, and the damage behind it; others as they are.

    Raises:
        TokscoreError: The copy cannot be written.
        OSError: The file cannot be read.
    """
    with path.open("rb") as handle:
        magic = handle.read(4)
    codec = next((codec for start, codec in _COMPRESSED.items() if magic.startswith(start)), None)
    if codec is None:
        return path, ""
    damages: list[OSError] = []

    def write(copy: BinaryIO) -> None:
        try:
            _decompress(path, codec, copy)
        except OSError as error:
            if is_of_machine(error):
                raise
            damages.append(error)

    found = temporary_copy(write)
    return found, f"{codec} says: {damages[0]}" if damages else ""


def _decompress(path: Path, codec: str, copy: BinaryIO) -> None:
    """Write what the file holds; of a damaged one, all before the first byte that cannot be read."""
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(path.open("rb"), codec) as stream:
            shutil.copyfileobj(stream, copy, _COPIED_BYTES)
    except OSError as error:
        if is_of_machine(error):
            raise
        # Of what it read last, a stream that fails gives nothing.
        if codec == "gzip":
            copy.seek(0)
            copy.truncate()
            _gunzip(path, copy)
            raise
        with pa.CompressedInputStream(path.open("rb"), codec) as stream:
            for _ in range(copy.tell() // _COPIED_BYTES):
                stream.read(_COPIED_BYTES)
            copy.writelines(iter(lambda: stream.read(1), b""))
        raise


def _gunzip(path: Path, copy: BinaryIO) -> None:
    """Write what a damaged gzip file holds before the first byte that cannot be read, or a wrong checksum."""
    with path.open("rb") as handle, suppress(zlib.error):
        member = zlib.decompressobj(_GZIP)
        while chunk := handle.read(_READ_BYTES):
            while chunk:
                before = member.copy()
                try:
                    copy.write(member.decompress(chunk))
                except zlib.error:
                    for byte in chunk:
                        copy.write(before.decompress(bytes([byte])))
                    raise
                chunk = member.unused_data
                if member.eof:
                    member = zlib.decompressobj(_GZIP)
