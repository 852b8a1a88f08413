"""Preferences of ms-swift: a conversation, and beside it what its last user shall not be answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import check_messages
from tokscore.rendering.conversations.values import kind_of
from tokscore.rendering.reading.fields.call_roles import has_call_roles, without_call_roles
from tokscore.rendering.reading.fields.messages import decoded

_RESPONSE, _MESSAGES = "rejected_response", "rejected_messages"


def has_rejected(record: Mapping[str, Any]) -> bool:  # Any: JSON values
    """Whether a record holds messages and what is rejected of them."""
    is_given = any(record.get(key) is not None for key in (_RESPONSE, _MESSAGES))
    return is_given and isinstance(record.get("messages"), (list, str))


def as_choices(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with `chosen` and `rejected`, whole conversations.

    A response takes the place of all that follows the last user.

    Raises:
        ConversationError: They are no messages, or nothing follows the last user.
    """
    chosen = _checked(record["messages"], "$.messages")
    if record.get(_MESSAGES) is not None:
        rejected = _checked(record[_MESSAGES], f"$.{_MESSAGES}")
    else:
        n_prompt = max((i for i, each in enumerate(chosen, 1) if each["role"] == "user"), default=0)
        if n_prompt == len(chosen):
            reason = "end with a user; expected the answer that is chosen behind it, since one is rejected."
            raise ConversationError(reason, path="$.messages")
        rejected = [*chosen[:n_prompt], *_response(record[_RESPONSE])]
    others = {key: value for key, value in record.items() if key not in ("messages", _RESPONSE, _MESSAGES)}
    return {**others, "chosen": chosen, "rejected": rejected}


def _response(value: object) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    return _checked(value, f"$.{_RESPONSE}")


def _checked(value: object, path: str) -> list[dict[str, Any]]:
    value = decoded(value, path, "a list of messages as JSON text")
    if not isinstance(value, list):
        raise ConversationError(f"is {kind_of(value)}; expected text or a list of messages.", path=path)
    if has_call_roles(value):
        return without_call_roles(value, path)
    return [dict(each) for each in check_messages(value, path)]
