"""Tool calls whose arguments a template encoded as JSON a second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokscore.rendering.templates.origins import SYNTAX, Runs


def encoded_twice(messages: Sequence[Mapping[str, Any]], text: str, runs: Runs) -> set[int]:
    """Messages with arguments given as JSON text that the template printed as a JSON string.

    A model sees an escaped string of JSON there, where the same call given as an object, or printed as it
    is, reads `"arguments": {"city": …}`.

    Args:
        messages: As the template saw them.
        text: The rendered text.
        runs: Its origins.
    """
    given = _encoded_arguments(messages)
    if not given:
        return set()
    found: set[int] = set()
    position = 0
    for run in runs:
        # Quotes around an input string are the only characters that start so and are not copied from it.
        if run.start == SYNTAX and run.origin is not None and text.startswith('"', position):
            message = given.get(run.origin.path)
            if message is not None:
                found.add(message)
        position += run.length
    return found


def _encoded_arguments(messages: Sequence[Mapping[str, Any]]) -> dict[tuple[str | int, ...], int]:
    """Message by the path of each of its arguments that is the JSON text of an object or list."""
    paths: dict[tuple[str | int, ...], int] = {}
    for i, message in enumerate(messages):
        for j, call in enumerate(message.get("tool_calls") or ()):
            base: tuple[str | int, ...] = ("messages", i, "tool_calls", j)
            function = call.get("function")
            if isinstance(function, Mapping):
                base = (*base, "function")
            if _is_json_text((function if isinstance(function, Mapping) else call).get("arguments")):
                paths[(*base, "arguments")] = i
    return paths


def _is_json_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return isinstance(msgspec.json.decode(value), (dict, list))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
