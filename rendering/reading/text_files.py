"""Files that are one text, as a record."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokscore.dataset.errors import InputError
from tokscore.dataset.files import temporary_copy

if TYPE_CHECKING:
    import mmap

_SUFFIX = ".txt"
_COMPRESSED = (".gz", ".zst")
_JSON_STARTS = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\]])')
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def text_record(content: mmap.mmap, name: str, input_format: str | None) -> Path | None:
    """A copy of a file of text as one record of the format `text`, named as the file; None for others.

    Text is what a name with .txt says, or what was asked for, unless the first line is a JSON object. What
    only begins like JSON is text where both say so; else it is taken for records, which may be damaged.

    Args:
        content: Of the file, which is not empty.
        name: As the user knows it.
        input_format: That was asked for, None without.

    Raises:
        InputError: It is no UTF-8.
    """
    is_asked = input_format == "text"
    suffixes = [each for each in Path(name).suffixes if each not in _COMPRESSED]
    is_named = suffixes[-1:] == [_SUFFIX]
    if not (is_asked or (is_named and input_format is None)):
        return None
    mark = len(codecs.BOM_UTF8) if content[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8 else 0
    if _JSON_STARTS.match(content, mark) and (not (is_asked and is_named) or _has_object(content, mark)):
        return None
    try:
        text = content[mark:].decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8: byte {mark + error.start + 1} is damaged; expected text in UTF-8."
        ) from error
    record = msgspec.json.encode({"id": name, "text": text})
    return temporary_copy(lambda copy: copy.writelines((record, b"\n")))


def _has_object(content: mmap.mmap, start: int) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    first = re.compile(rb"\s*([^\n]*)").match(content, start)
    assert first is not None  # it matches nothing, too
    try:
        _OBJECT.decode(first[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
