"""How deep a record may be nested."""

from __future__ import annotations

from tokscore.dataset.errors import ConversationError, foreign

# Pythons differ in how deep they follow: 3.11 renders call arguments 324 deep, and reads records 989 deep.
MAX_DEPTH = 256
_SHOWN_STEPS = 6


def check_depth(line: bytes, record: object) -> None:
    """Refuse what not every Python can follow, so that a record is read by all of them or by none.

    Args:
        line: The record as JSON; with few brackets there is nothing to look for.
        record: What is in it.

    Raises:
        ConversationError: Lists and objects lie more than `MAX_DEPTH` deep in each other.
    """
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH or not _is_deep(record):
        return
    found: list[tuple[object, int, str]] = [(record, 1, "$")]
    while found:
        value, depth, path = found.pop()
        if depth > MAX_DEPTH:
            raise ConversationError(
                f"is nested too deeply; expected at most {MAX_DEPTH} lists and objects in each other.",
                path=path,
            )
        is_shown = depth < _SHOWN_STEPS
        if isinstance(value, dict):
            found += [
                (each, depth + 1, f"{path}.{foreign(key)}" if is_shown else path)
                for key, each in value.items()
                if isinstance(each, (dict, list))
            ]
        elif isinstance(value, list):
            found += [
                (each, depth + 1, f"{path}[{i}]" if is_shown else path)
                for i, each in enumerate(value)
                if isinstance(each, (dict, list))
            ]


def _is_deep(record: object) -> bool:
    """Whether a record is to be refused, in a quarter of the time that the place takes to find."""
    level = [record]
    for _ in range(MAX_DEPTH):
        level = [
            each
            for value in level
            for each in (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            )
            if isinstance(each, (dict, list))
        ]
        if not level:
            return False
    return True
