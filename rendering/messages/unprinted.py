"""Keys of messages that a template neither printed nor read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokscore.rendering.templates.origins import REASONING_FIELDS, Runs

# Counted where none of their text is printed, also by a template that reads them elsewhere.
_BODIES = frozenset({"content", "tool_calls"})
# What tokscore reads of all messages; the name of a tool besides.
_USED = frozenset({"role", "tool_call_id"})
_LONGEST_KEY = 80


def unprinted_keys(
    messages: Sequence[Mapping[str, Any]],  # Any: JSON values
    runs: Runs,
    *,
    read: frozenset[str],
    dropped: Sequence[int],
) -> dict[int, tuple[str, ...]]:
    """Keys with a value of which nothing reached the text, by message; without those that lost nothing.

    Args:
        messages: As they were shown to the template.
        runs: Of the rendered text.
        read: Keys that the template reads, as `read_names` finds them.
        dropped: Characters of each message's body that the template left out.
    """
    known = _known_keys(read)
    lost = {}
    for i, message in enumerate(messages):
        if message.keys() <= known and not dropped[i]:
            continue
        keys = [key for key in message if key not in known or (key in _BODIES and dropped[i])]
        if message.get("role") == "tool" and "name" in keys:
            keys.remove("name")
        if keys := [key for key in keys if not _is_empty(message[key])]:
            lost[i] = keys
    if not lost:
        return {}
    printed = {run.origin[1:3] for run in runs if run.origin is not None}
    return {
        i: left
        for i, keys in lost.items()
        if (i, "message") not in printed
        and (left := tuple(key[:_LONGEST_KEY] for key in keys if (i, _root(key)) not in printed))
    }


@lru_cache(maxsize=64)
def _known_keys(read: frozenset[str]) -> frozenset[str]:
    """The keys that are read, with all names of the reasoning, which transformers copies under the others."""
    aliases = () if read.isdisjoint(REASONING_FIELDS) else REASONING_FIELDS
    return _USED | _BODIES | read.union(aliases)


def _root(key: str) -> str:
    return REASONING_FIELDS[0] if key in REASONING_FIELDS else key


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value in ([], {})
