"""Tables, and descriptions out of docstrings, for the generated pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

NOTICE = "<!-- Written by docs/generate.py; edit what it reads and run it again. -->\n"


class UndocumentedError(Exception):
    """A command, option or column that nothing describes."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def attributes(cls: type) -> dict[str, str]:
    """The Attributes of a docstring, on one line each, with JSON's null for None."""
    section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if match := re.match(r" {4}(\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        else:
            found[name] += f" {line.strip()}"
    found = {name: re.sub(r"(^|\. )None\b", r"\1Null", text) for name, text in found.items()}
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in found.items()}
