"""`json.dumps` for tracked values: strings keep their runs, punctuation belongs to its container."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from tokscore.rendering.templates.limits import PIECE_CHARACTERS, take
from tokscore.rendering.templates.origins import SYNTAX, Origin, Run
from tokscore.rendering.templates.strings import TrackedStr, concat, origin_of, plain, syntax, track
from tokscore.rendering.templates.values import TrackedBool

_SHORT_ESCAPES = '"\\\n\r\t\b\f'
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPED_ASCII = re.compile(r'["\\\x00-\x1f]|[^\x00-\x7f]')


def dumps(
    value: Any,  # Any: whatever a template passes
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> TrackedStr:
    """The text of `json.dumps` with the same arguments, attributed character by character.

    Raises:
        TypeError: `value` holds something that JSON has no form for.
    """
    writer = _Writer(ensure_ascii, indent, separators, sort_keys)
    return writer.write(value, 0, origin_of(value))


class _Writer:
    def __init__(
        self,
        ensure_ascii: bool,
        indent: int | str | None,
        separators: tuple[str, str] | None,
        sort_keys: bool,
    ) -> None:
        self.ensure_ascii = ensure_ascii
        self.indent = " " * indent if isinstance(indent, int) else indent
        self.comma, self.colon = separators or ((", ", ": ") if indent is None else (",", ": "))
        self.sort_keys = sort_keys
        self.encode = encode_basestring_ascii if ensure_ascii else encode_basestring  # as json.dumps does

    def write(self, value: Any, depth: int, inherited: Origin | None) -> TrackedStr:  # Any: JSON values
        if isinstance(value, str):
            return self.string(track(value), inherited)
        origin = origin_of(value) or inherited
        if isinstance(value, TrackedBool):
            return syntax("true" if value else "false", origin)
        if value is None or isinstance(value, (bool, int, float)):
            return syntax(json.dumps(value), origin)
        newline = end = ""
        if self.indent is not None:
            newline, end = "\n" + self.indent * (depth + 1), "\n" + self.indent * depth
        comma = syntax(self.comma + newline, origin)
        if isinstance(value, dict):
            items = sorted(value.items()) if self.sort_keys else value.items()
            parts = [self.member(key, item, depth, origin) for key, item in items]
            opening, closing = "{", "}"
        elif isinstance(value, (list, tuple)):
            parts = [self.write(item, depth + 1, origin) for item in value]
            opening, closing = "[", "]"
        else:
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
        if not parts:
            return syntax(opening + closing, origin)
        return concat((syntax(opening + newline, origin), comma.join(parts), syntax(end + closing, origin)))

    def member(
        self, key: Any, item: Any, depth: int, inherited: Origin | None
    ) -> TrackedStr:  # Any: JSON values
        if isinstance(key, str):
            name = self.string(track(key), inherited)
        elif key is None or isinstance(key, (bool, int, float)):
            text = json.dumps(key) if not isinstance(key, TrackedBool) else str(key).lower()
            name = syntax(f'"{text}"', origin_of(key) or inherited)
        else:
            raise TypeError(f"keys must be str, int, float, bool or None, not {type(key).__name__}")
        origin = origin_of(key) or inherited
        return concat((name, syntax(self.colon, origin), self.write(item, depth + 1, origin)))

    def string(self, text: TrackedStr, inherited: Origin | None) -> TrackedStr:
        """The JSON string; its quotes belong to its first and last character's origin, or its container."""
        runs = text._runs
        if not runs:
            return syntax('""', inherited)
        first, last = runs[0], runs[-1]
        quoted: list[Run] = [Run(1, first.origin, SYNTAX, first.writer, first.generated)]
        position, raw = 0, plain(text)
        for run in runs:
            quoted += self.escaped_runs(raw[position : position + run.length], run)
            position += run.length
        quoted.append(Run(1, last.origin, SYNTAX, last.writer, last.generated))
        return TrackedStr(self.encode(raw), tuple(quoted))

    def escaped_runs(self, raw: str, run: Run) -> list[Run]:
        pattern = _ESCAPED_ASCII if self.ensure_ascii else _ESCAPED
        runs, position = [], 0
        for match in pattern.finditer(raw):
            take(PIECE_CHARACTERS)
            if match.start() > position:
                runs.append(run.part(position, match.start() - position))
            position = match.end()
            escape = 2 if match[0] in _SHORT_ESCAPES else 12 if match[0] > "\uffff" else 6
            runs.append(run.part(match.start(), 1))
            runs.append(Run(escape - 1, run.origin, SYNTAX, run.writer, run.generated))
        if position < len(raw):
            runs.append(run.part(position, len(raw) - position))
        return runs
