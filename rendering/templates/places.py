"""Where in the messages a template was when it failed."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any

from tokscore.rendering.templates.strings import origin_of
from tokscore.rendering.templates.values import TrackedDict

_TEMPLATE_FILE = "<template>"
_MISSING = re.compile(r"'dict object' has no attribute '([^']*)'")
_LIST = re.compile(r"'list object'|\"list\"|not list|'list'")
_MAPPING = re.compile(
    r"from a mapping|'str object' has no attribute '(?:items|keys|values|get)'|not a mapping"
)
_OBJECT = re.compile(r"\"dict\"|not dict|'dict object' has no attribute '(?:startswith|strip|split|replace)'")

Path = tuple[str | int, ...]


def place_of(error: BaseException, text: str) -> str:
    """What the template was printing, such as `messages[3].content is missing`; empty if unknown.

    Args:
        error: As it left the template.
        text: Of the error, with the names of Python's own types.
    """
    inside = _inside(error.__traceback__)
    if not inside:
        return ""
    if missing := _MISSING.search(text):
        for path, value in inside:
            if missing[1] not in value:
                return f"{shown_path((*path, missing[1]))} is missing"
    message: Path = inside[0][0][:2]
    for path, value in inside:
        if path == message and (found := _suspect(text, value)):
            return f"{shown_path(message)}.{found}"
    return f"at {shown_path(message)}"


def shown_path(path: Path) -> str:
    """A path as in JSON: `messages[3].tool_calls[0].id`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _inside(trace: TracebackType | None) -> list[tuple[Path, dict[str, Any]]]:  # Any: JSON values
    """The objects of messages that variables of the template held, the innermost first."""
    found: dict[Path, dict[str, Any]] = {}
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TEMPLATE_FILE:
            for value in list(trace.tb_frame.f_locals.values()):
                origin = origin_of(value) if isinstance(value, TrackedDict) else None
                if origin is not None and origin.message is not None:
                    found[origin.path] = value
        trace = trace.tb_next
    return sorted(found.items(), key=lambda each: (_message(each[0]), len(each[0])), reverse=True)


def _message(path: Path) -> int:
    return path[1] if isinstance(path[1], int) else -1


def _suspect(text: str, message: dict[str, Any]) -> str:  # Any: JSON values
    """The field of a message that an error speaks of, and what it is; empty if unknown."""
    if _LIST.search(text):
        return next((f"{key} is a list" for key, value in message.items() if isinstance(value, list)), "")
    wanted = (str, "JSON text") if _MAPPING.search(text) else (dict, "an object")
    if wanted[0] is dict and not _OBJECT.search(text):
        return ""
    for i, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), wanted[0]):
            return f"tool_calls[{i}].function.arguments is {wanted[1]}"
    return ""
