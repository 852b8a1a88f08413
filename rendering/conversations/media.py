"""Images, videos and audio that a record names beside its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tokscore.dataset.errors import ConversationError, or_skip
from tokscore.rendering.conversations.values import kind_of

_KINDS = ("image", "video", "audio")
_FILE_KEYS = ("bytes", "path", "url", "array")


def check_no_media(record: Mapping[str, Any]) -> None:  # Any: JSON values
    """Refuse a record whose messages are about media that it lists beside them, as trainers write them.

    `image` alone may be something else, such as the container of a task: it counts where it holds a file, or
    where a text has a place for it (`<image>`).

    Args:
        record: A JSON object without token ids.

    Raises:
        ConversationError: There are some.
    """
    for kind in _KINDS:
        for key in (f"{kind}s", kind):
            value = record.get(key)
            if not _is_given(value) or (key == kind and not _is_file(value) and not _has_place(record, kind)):
                continue
            raise ConversationError(
                f"is {kind_of(value)}; tokscore renders text only and would score the text without its "
                f"{kind}.",
                hint=or_skip("Record the token ids", "drop such records"),
                path=f"$.{key}",
            )


def _is_given(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_is_given, value))
    return isinstance(value, str | dict) and bool(value)


def _is_file(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_is_file, value))
    return isinstance(value, dict) and any(value.get(key) is not None for key in _FILE_KEYS)


def _has_place(record: Mapping[str, Any], kind: str) -> bool:  # Any: JSON values
    return f"<{kind}>".encode() in msgspec.json.encode(record)
