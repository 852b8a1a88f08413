"""Texts of a record that are kept apart from where they are used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.values import shown

_ATTACHMENT = "attachment://"
_NAME = re.compile(r"[0-9A-Za-z]+")  # a hash; what else follows is an address that somebody wrote


def attached(text: str, path: str, attachments: Mapping[str, Any]) -> str:
    """The text, or the attachment that stands in its place.

    Args:
        text: A text of the record.
        path: Its JSON path.
        attachments: Texts by what follows `attachment://`.

    Raises:
        ConversationError: There is no such attachment.
    """
    if not text.startswith(_ATTACHMENT):
        return text
    name = text.removeprefix(_ATTACHMENT)
    found = attachments.get(name)
    if found is None and not _NAME.fullmatch(name):
        return text
    if not isinstance(found, str):
        raise ConversationError(f"is {shown(text)}, which attachments lacks; expected its text.", path=path)
    return found


def all_attached(value: Any, path: str, attachments: Mapping[str, Any]) -> Any:  # Any: JSON values
    """A JSON value with the attachments in the place of all texts in it that name one.

    Raises:
        ConversationError: There is no such attachment, or it is nested too deeply.
    """
    try:
        return _all_attached(value, path, attachments)
    except RecursionError:
        raise ConversationError("is nested too deeply.", path=path) from None


def _all_attached(value: Any, path: str, attachments: Mapping[str, Any]) -> Any:  # Any: JSON values
    if isinstance(value, str):
        return attached(value, path, attachments)
    if isinstance(value, dict):
        return {key: _all_attached(each, f"{path}.{key}", attachments) for key, each in value.items()}
    if isinstance(value, list):
        return [_all_attached(each, f"{path}[{i}]", attachments) for i, each in enumerate(value)]
    return value
