"""Text with everything visible that a terminal would hide, or take for something else."""

from __future__ import annotations

import re

BETWEEN = "│"
SHOWN_AS = {" ": "·", "\n": "↵", "\t": "→"}
_MARKS = frozenset({BETWEEN, "…", *SHOWN_AS.values()})


def visible(text: str, marks: str = "") -> str:
    """The text with white space shown; what a terminal would not show, or take for a mark, is escaped.

    Args:
        text: Any characters.
        marks: Further characters that mean something else where the text is printed.
    """
    return re.sub(r"[\s\S]", lambda match: _visible_character(match[0], marks), text)


def _visible_character(character: str, marks: str) -> str:
    if character in SHOWN_AS:
        return SHOWN_AS[character]
    if character.isprintable() and character not in _MARKS and character not in marks:
        return character
    return (
        character.encode("unicode_escape").decode() if ord(character) < 128 else f"\\u{{{ord(character):x}}}"
    )
