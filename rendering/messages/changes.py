"""What servers change in messages before a template sees them.

Source: vllm 0.32.0, renderers/chat_utils.py and renderers/hf.py; docs/messages.md has the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.messages import calls

Message = Mapping[str, Any]  # Any: JSON values
ROLES = ("system", "user", "assistant", "tool")
# The text of a part by its type.
_PART_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
# What vLLM passes on of a message.
_PASSED_KEYS = frozenset(
    {
        "role",
        "content",
        "name",
        "task",
        "tool_calls",
        "reasoning",
        "reasoning_content",
        "tool_call_id",
        "tools",
    }
)


class Change(NamedTuple):
    """One kind of change.

    Attributes:
        flag: Of the messages that it changes.
        role: Of the messages whose parts are joined; empty for other kinds, which know theirs.
    """

    flag: MessageFlag
    role: str = ""


class Changed(NamedTuple):
    """Messages with what was changed in them.

    Attributes:
        messages: As many as before.
        flags: By index of the message, in order; without those that stayed.
    """

    messages: list[Message]
    flags: dict[int, tuple[MessageFlag, ...]]


PARTS = tuple(Change(MessageFlag.PARTS, role) for role in ROLES)
# In the order in which they are made.
CHANGES = (
    Change(MessageFlag.FUNCTION_CALL),
    Change(MessageFlag.DEVELOPER),
    *PARTS,
    Change(MessageFlag.NO_CALLS),
    Change(MessageFlag.CALL_FORM),
    Change(MessageFlag.ARGUMENTS),
    Change(MessageFlag.CALL_IDS),
    Change(MessageFlag.EMPTY_CONTENT),
)


def change_messages(
    messages: Sequence[Message], wanted: Collection[Change], *, read: Collection[str] = ()
) -> Changed:
    """The messages as a server shows them, as far as that is wanted.

    Args:
        messages: As in the record.
        wanted: Which changes.
        read: Keys that the template reads, of which `keys_left_out` leaves those that no server passes on.
    """
    shown: list[Message] = list(messages)
    if not wanted:
        return Changed(shown, {})
    found: dict[int, list[MessageFlag]] = {}
    flags = {change.flag for change in wanted}
    roles = {change.role for change in wanted if change.flag is MessageFlag.PARTS}
    for flag, step in _steps(roles, read).items():
        for i, message in enumerate(list(step(shown)) if flag in flags else ()):
            if message is not None:
                shown[i] = message
                found.setdefault(i, []).append(flag)
    return Changed(shown, {i: tuple(each) for i, each in sorted(found.items())})


def _steps(
    roles: Collection[str], read: Collection[str]
) -> Mapping[MessageFlag, Callable[[Sequence[Message]], Iterable[Message | None]]]:
    """What makes each kind of change, in order: new messages, None in place of those that stay."""
    return {
        MessageFlag.FUNCTION_CALL: calls.from_functions,
        MessageFlag.DEVELOPER: lambda given: map(_as_system, given),
        MessageFlag.PARTS: lambda given: (_joined(message, roles) for message in given),
        MessageFlag.NO_CALLS: lambda given: map(_without_empty_calls, given),
        MessageFlag.CALL_FORM: lambda given: map(calls.in_form, given),
        MessageFlag.ARGUMENTS: lambda given: map(calls.with_objects, given),
        MessageFlag.ARGUMENTS_LOST: lambda given: map(calls.without_broken, given),
        MessageFlag.CALL_IDS: calls.short_ids,
        MessageFlag.EMPTY_CONTENT: lambda given: map(_with_content, given),
        MessageFlag.KEYS: lambda given: (_without_keys(message, read) for message in given),
    }


def _as_system(message: Message) -> dict[str, Any] | None:
    return {**message, "role": "system"} if message.get("role") == "developer" else None


def _joined(message: Message, roles: Collection[str]) -> dict[str, Any] | None:
    parts = message.get("content")
    if not isinstance(parts, list) or message.get("role") not in roles:
        return None
    texts = [part if isinstance(part, str) else _part_text(part) for part in parts]
    if any(text is None for text in texts):
        return None
    return {**message, "content": "\n".join(text for text in texts if text is not None)}


def _part_text(part: object) -> str | None:
    if not isinstance(part, Mapping):
        return None
    text = part.get(_PART_TEXTS.get(str(part.get("type")), ""))
    return text if isinstance(text, str) else None


def _without_empty_calls(message: Message) -> dict[str, Any] | None:
    if message.get("tool_calls") != []:
        return None
    return {key: value for key, value in message.items() if key != "tool_calls"}


def _with_content(message: Message) -> dict[str, Any] | None:
    return {**message, "content": ""} if message.get("content") is None else None


def _without_keys(message: Message, read: Collection[str]) -> dict[str, Any] | None:
    lost = {
        key for key, value in message.items() if key in read and value is not None and key not in _PASSED_KEYS
    }
    return {key: value for key, value in message.items() if key not in lost} if lost else None
