"""Which changes a chat template needs, found out by asking it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any, NamedTuple

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.messages.changes import CHANGES, PARTS, ROLES, Change, change_messages
from tokscore.rendering.templates.origins import WHOLE
from tokscore.rendering.templates.render import RenderedText

Message = Mapping[str, Any]  # Any: JSON values
# Renders messages; raises ConversationError where the template refuses them.
Render = Callable[[Sequence[Message]], RenderedText]

_USER = {"role": "user", "content": "hi"}
_WORDS = ("lantern", "quarry", "meadow", "harbour")
_FIRST, _SECOND, _NAME, _RESULT = _WORDS
_HELPERS = (Change(MessageFlag.EMPTY_CONTENT), Change(MessageFlag.ARGUMENTS))


class Needs(NamedTuple):
    """What a template does not take as transformers would give it, and takes once it is changed.

    Attributes:
        refused: Changes without which it refuses the messages.
        silent: Changes without which it leaves out their text, and says nothing.
        taken_parts: Roles whose text parts it prints as text.
    """

    refused: frozenset[Change]
    silent: frozenset[Change]
    taken_parts: frozenset[str]


def find_needs(render: Render) -> Needs:
    """What a template needs.

    Args:
        render: The template, with the variables of the conversations.
    """
    refused, silent = set[Change](), set[Change]()
    for change in CHANGES:
        before = [_look(render, probe) for probe in _probes(change)]
        if any(each is not None and each.is_whole for each in before):
            continue
        after = (_look(render, probe) for probe in _changed(change))
        if any(each is not None and each.is_whole for each in after):
            (silent if any(each is not None for each in before) else refused).add(change)
    taken = {
        change.role
        for change in PARTS
        if any(
            look is not None and look.is_whole and not look.is_python
            for look in (_look(render, probe) for probe in _probes(change))
        )
    }
    return Needs(frozenset(refused), frozenset(silent), frozenset(taken))


class _Look(NamedTuple):
    """How a template took a probe.

    Attributes:
        is_whole: All that it should print is there.
        is_python: A list or object is printed as Python writes it.
    """

    is_whole: bool
    is_python: bool


class _Probe(NamedTuple):
    messages: Sequence[Message]
    words: Sequence[str]


def _look(render: Render, probe: _Probe) -> _Look | None:
    """None where the template refuses the probe."""
    try:
        text, runs = render(probe.messages)
    except (ConversationError, RecursionError):
        return None
    return _Look(all(word in text for word in probe.words), any(run.start == WHOLE for run in runs))


def _changed(change: Change) -> Iterator[_Probe]:
    """The probes of a kind of change with it, and with those that the template may need besides."""
    for probe, helpers in product(_probes(change), _subsets()):
        yield probe._replace(messages=change_messages(probe.messages, {change, *helpers}).messages)


def _subsets() -> list[tuple[Change, ...]]:
    return list(chain.from_iterable(combinations(_HELPERS, n) for n in range(len(_HELPERS) + 1)))


def _probes(change: Change) -> list[_Probe]:
    """Short conversations that each hold what a kind of change changes."""
    match change.flag:
        case MessageFlag.DEVELOPER:
            return [_Probe([{"role": "developer", "content": _FIRST}, _USER], [_FIRST])]
        case MessageFlag.NO_CALLS:
            return [_Probe([_USER, {"role": "assistant", "content": _FIRST, "tool_calls": []}], [_FIRST])]
        case MessageFlag.FUNCTION_CALL:
            return [
                _Probe(_function_calls(content, arguments), [_NAME, _RESULT])
                for content, arguments in product((None, "", "ok"), _arguments())
            ]
        case MessageFlag.PARTS:
            return [_Probe(messages, [_FIRST, _SECOND]) for messages in _with_parts(change.role)]
        case MessageFlag.EMPTY_CONTENT:
            return [_Probe(_tool_calls(None, arguments), [_NAME]) for arguments in _arguments()]
        case MessageFlag.ARGUMENTS:
            return [_Probe(_tool_calls(content, _TEXT), [_NAME]) for content in (None, "", "ok")]
        case MessageFlag.CALL_IDS:
            made = [_tool_calls(*each, identifier="call_a1b2c3d4e5f6") for each in _forms()]
        case _:
            made = [_tool_calls(*each, form=form) for each in _forms() for form in ("bare", "untyped")]
    return [_Probe(messages, [_NAME]) for messages in made]


_OBJECT, _TEXT = {"a": 1}, '{"a": 1}'


def _arguments() -> tuple[object, object]:
    return _OBJECT, _TEXT


def _forms() -> list[tuple[str | None, object]]:
    """Content and arguments in every form that templates take."""
    return list(product((None, "", "ok"), _arguments()))


def _tool_calls(
    content: str | None, arguments: object, *, identifier: str = "call00001", form: str = "whole"
) -> list[Message]:
    function = {"name": _NAME, "arguments": arguments}
    call: dict[str, Any] = {"id": identifier, "type": "function", "function": function}
    if form == "untyped":
        del call["type"]
    if form == "bare":
        call = {"id": identifier, **function}
    return [
        _USER,
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "name": _NAME, "tool_call_id": identifier, "content": _RESULT},
    ]


def _function_calls(content: str | None, arguments: object) -> list[Message]:
    call = {"name": _NAME, "arguments": arguments}
    return [
        _USER,
        {"role": "assistant", "content": content, "function_call": call},
        {"role": "function", "name": _NAME, "content": _RESULT},
    ]


def _with_parts(role: str) -> Iterator[list[Message]]:
    assert role in ROLES
    parts = [{"type": "text", "text": text} for text in (_FIRST, _SECOND)]
    if role == "system":
        yield [{"role": role, "content": parts}, _USER]
    elif role == "user":
        yield [{"role": role, "content": parts}]
    elif role == "assistant":
        yield [_USER, {"role": role, "content": parts}]
    else:
        for content, arguments in _forms():
            *others, result = _tool_calls(content, arguments)
            yield [*others, {**result, "content": parts}]
