"""Text with everything visible that a terminal would obey, hide, or take for something else."""

from __future__ import annotations

import re

BETWEEN = "│"
SHOWN_AS = {" ": "·", "\n": "↵", "\t": "→"}
_MARKS = frozenset({BETWEEN, "…", *SHOWN_AS.values()})
_NOT_ASCII = re.compile(r"[^ -~]+")
# Bytes of a name that are not UTF-8, as Python keeps them (PEP 383).
_BYTES = range(0xDC80, 0xDD00)


def escaped(text: str, kept: str = "\n") -> str:
    r"""The text with escapes for controls, marks of direction, half characters and all else that is no glyph.

    Args:
        text: Any characters.
        kept: Those of them that pass nevertheless.

    Returns:
        `\x1b` for ASCII, `\u{202e}` for the rest, `\xff` for a byte of a name that is not UTF-8.
    """

    def show(found: re.Match[str]) -> str:
        run = found[0]
        if run.isprintable():
            return run
        return "".join(each if each.isprintable() or each in kept else _escape(each) for each in run)

    return _NOT_ASCII.sub(show, text)


def json_escaped(text: str, *, is_ascii: bool = False) -> str:
    r"""JSON with the same characters as `\uXXXX`, so that who parses it gets them back.

    Args:
        text: JSON, whose strings hold any characters.
        is_ascii: Whether to escape all beyond ASCII.
    """

    def show(found: re.Match[str]) -> str:
        run = found[0]
        if run.isprintable() and not is_ascii:
            return run
        return "".join(
            each if each == "\n" or (each.isprintable() and not is_ascii) else _json_escape(each)
            for each in run
        )

    return _NOT_ASCII.sub(show, text)


def visible(text: str, marks: str = "") -> str:
    """The text in one line with white space shown; marks, and what a terminal would not show, are escaped.

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
    return _escape(character)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 128:
        return character.encode("unicode_escape").decode()
    return f"\\x{code - 0xDC00:02x}" if code in _BYTES else f"\\u{{{code:x}}}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
