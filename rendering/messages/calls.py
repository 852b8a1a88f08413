"""Tool calls as servers show them to templates."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]  # Any: JSON values
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_N_CHARACTERS = 9


def calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    """The tool calls of a message, empty without any."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else ()


def with_calls(message: Message, calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The message with these calls in place of its own, None where they are equal."""
    return None if not calls or calls == message.get("tool_calls") else {**message, "tool_calls": calls}


def in_form(message: Message) -> dict[str, Any] | None:
    """Each call as `{"type": "function", "function": {"name": …, "arguments": …}}`, None where all are."""
    calls = []
    for call in calls_of(message):
        function = call.get("function")
        if isinstance(function, Mapping) and call.get("type") is not None:
            calls.append(dict(call))
            continue
        bare = () if isinstance(function, Mapping) else ("name", "arguments")
        rest = {key: value for key, value in call.items() if key not in ("type", "function", *bare)}
        function = {key: call[key] for key in bare if key in call} if bare else function
        calls.append({**rest, "type": call.get("type") or "function", "function": function})
    return with_calls(message, calls)


def with_objects(message: Message) -> dict[str, Any] | None:
    """Arguments that are the JSON text of an object as that object, missing ones as {}; None without any."""
    return _with_arguments(message, _parsed)


def without_broken(message: Message) -> dict[str, Any] | None:
    """Arguments that are no JSON object as {}, None where all are."""
    return _with_arguments(message, lambda value: value if isinstance(_parsed(value), dict) else {})


def _with_arguments(message: Message, change: Callable[[object], object]) -> dict[str, Any] | None:
    calls = []
    for call in calls_of(message):
        function = call.get("function")
        if isinstance(function, Mapping):
            changed = {**function, "arguments": change(function.get("arguments"))}
            calls.append({**call, "function": changed})
        else:
            calls.append({**call, "arguments": change(call.get("arguments"))})
    return with_calls(message, calls)


def _parsed(value: object) -> object:
    """The object that JSON text stands for; other values as they are."""
    if value is None or value == "":
        return {}
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def from_functions(messages: Sequence[Message]) -> list[dict[str, Any] | None]:
    """Messages with `function_call`, or of the role `function`, as those of tools; else None."""
    changed: list[dict[str, Any] | None] = []
    identifier = made_id(0)
    for i, message in enumerate(messages):
        call = message.get("function_call")
        if isinstance(call, Mapping) and isinstance(call.get("name"), str) and not message.get("tool_calls"):
            identifier = made_id(i)
            kept = {
                key: value for key, value in message.items() if key not in ("function_call", "tool_calls")
            }
            made = {"id": identifier, "type": "function", "function": dict(call)}
            changed.append({**kept, "tool_calls": [made]})
        elif message.get("role") == "function":
            changed.append({**message, "role": "tool", "tool_call_id": identifier})
        else:
            changed.append(None)
    return changed


def made_id(number: int) -> str:
    """An id of nine characters, the form that every template takes."""
    return f"call{number:05d}"[-_N_CHARACTERS:]


def short_ids(messages: Sequence[Message]) -> Iterator[dict[str, Any] | None]:
    """Each message with ids of calls that are nine letters and digits, None where they are.

    Longer ones are cut to their last nine characters, as vLLM does for Mistral's tokenizers, if these are
    letters and digits and of no other id; ids that are missing are counted up.
    """
    given = {
        str(found)
        for message in messages
        for found in (message.get("tool_call_id"), *(call.get("id") for call in calls_of(message)))
        if found is not None
    }
    tails = [identifier[-_N_CHARACTERS:] for identifier in given]
    short = {
        identifier: tail if _NINE.fullmatch(tail) and tails.count(tail) == 1 else _hashed(identifier)
        for identifier, tail in zip(given, tails, strict=True)
    }
    open_ids: list[str] = []
    for i, message in enumerate(messages):
        calls = []
        for j, call in enumerate(calls_of(message)):
            found = call.get("id")
            identifier = made_id(100 * i + j) if found is None else short[str(found)]
            open_ids.append(identifier)
            calls.append(dict(call) if found == identifier else {**call, "id": identifier})
        changed = with_calls(message, calls)
        if message.get("role") == "tool":
            found = message.get("tool_call_id")
            identifier = (
                open_ids[0] if found is None and open_ids else short.get(str(found), made_id(100 * i))
            )
            if identifier in open_ids:
                open_ids.remove(identifier)
            if identifier != found:
                changed = {**(changed or message), "tool_call_id": identifier}
        yield changed


def _hashed(identifier: str) -> str:
    return hashlib.sha256(identifier.encode("utf-8", "replace")).hexdigest()[:_N_CHARACTERS]
