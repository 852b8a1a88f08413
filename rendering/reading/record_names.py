"""The name that a record gives itself, and its group, read without the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import decode_record
from tokscore.rendering.reading.fields.json_path import is_path, root_key, value_at

if TYPE_CHECKING:
    from tokscore.rendering.reading.formats.format import Format


class RecordName(NamedTuple):
    """Fields of a record that planning needs.

    Attributes:
        conversation_id: None where the record has none.
        group: JSON value by which neighbours belong together, None without.
    """

    conversation_id: str | None
    group: object


def record_name(line: bytes, chosen: Format) -> RecordName:
    """The name and the group in one line; nothing of a line that is no JSON object."""
    joined = [(keys,) if isinstance(keys, str) else keys for keys in chosen.id_keys]
    wanted = tuple(dict.fromkeys([*(key for keys in joined for key in keys), chosen.group_key]))
    roots = tuple(root_key(key) for key in wanted)
    found = dict(zip(roots, _values(line, roots), strict=True))
    values = {key: value_at(found, key) if is_path(key) else found[key] for key in wanted}
    names = (_joined([values[key] for key in keys]) for keys in joined)
    return RecordName(next(filter(None, names), None), values[chosen.group_key])


def _joined(values: Sequence[object]) -> str:
    """Names in a row, empty where one of them is none."""
    if all(isinstance(each, (str, int)) and not isinstance(each, bool) and each != "" for each in values):
        return "-".join(map(str, values))
    return ""


def _values(line: bytes, keys: tuple[str, ...]) -> Sequence[object]:
    try:
        return msgspec.structs.astuple(_decoder(keys).decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            found = decode_record(line)  # Python's JSON has infinities
        except ConversationError:
            return [None] * len(keys)
        return [found.get(key) for key in keys]


@lru_cache
def _decoder(keys: tuple[str, ...]) -> msgspec.json.Decoder[msgspec.Struct]:
    """Of objects with values of any type at the keys; keys need not be Python names."""
    names = {f"value_{i}": key for i, key in enumerate(keys)}
    return msgspec.json.Decoder(
        msgspec.defstruct("Named", [(name, object, None) for name in names], rename=names)
    )
