"""In which form messages are shown to a template, and which is tried first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tokscore.dataset.choices import MessageForm
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.messages.changes import CHANGES, PARTS, Change, Changed, change_messages
from tokscore.rendering.messages.needs import Needs

Message = Mapping[str, Any]  # Any: JSON values


_ARGUMENTS = Change(MessageFlag.ARGUMENTS)
# Servers change these only for templates that need it.
_ON_NEED = frozenset({MessageFlag.FUNCTION_CALL, MessageFlag.DEVELOPER, MessageFlag.CALL_IDS})
_USUAL_ROLES = frozenset({"system", "user", "assistant", "tool"})


def forms_of(
    messages: Sequence[Message],
    form: MessageForm,
    *,
    is_served: bool,
    needs: Callable[[], Needs],
    read: Collection[str],
) -> Iterator[Changed]:
    """The messages in each form that may be tried, the one that is meant first; no two are equal.

    Args:
        messages: As in the record.
        form: What the user chose.
        is_served: A server wrote the record.
        needs: Of the template; asked for where it matters.
        read: Keys of messages that the template reads.
    """
    seen: list[list[Message]] = []
    for wanted in _wanted(messages, form, is_served=is_served, needs=needs):
        changed = change_messages(messages, wanted, read=read)
        if changed.messages not in seen:
            seen.append(changed.messages)
            yield changed


def _wanted(
    messages: Sequence[Message], form: MessageForm, *, is_served: bool, needs: Callable[[], Needs]
) -> Iterator[Collection[Change]]:
    if form is MessageForm.AS_IS:
        yield ()
        return
    if form is MessageForm.SERVER or is_served:
        yield as_servers(needs())
    if form is MessageForm.SERVER:
        return
    silent = needs().silent if any(map(_may_be_lost, messages)) else frozenset[Change]()
    yield silent
    yield silent | needs().refused
    for change in reversed(CHANGES):
        yield silent | {change}
    everything = frozenset(CHANGES)
    yield everything
    yield everything - {_ARGUMENTS}


def as_servers(needs: Needs) -> frozenset[Change]:
    """What servers change for a template."""
    parts = {change for change in PARTS if change.role == "tool" or change.role not in needs.taken_parts}
    needed = {change for change in needs.refused | needs.silent if change.flag in _ON_NEED}
    always = {change for change in CHANGES if change.flag not in _ON_NEED and change not in PARTS}
    more = (Change(MessageFlag.ARGUMENTS_LOST), Change(MessageFlag.KEYS))
    return frozenset({*always, *needed, *parts, *more})


def may_change(message: Message) -> bool:
    """Whether servers may show a message otherwise than it is."""
    return _may_be_lost(message) or "tool_calls" in message


def _may_be_lost(message: Message) -> bool:
    """Whether templates leave out such a message without a word, or part of it."""
    return (
        message.get("role") not in _USUAL_ROLES
        or "function_call" in message
        or type(message.get("content")) is not str
        or message.get("tool_calls") == []
    )
