"""Messages of the library, as the command line says them."""

from __future__ import annotations

import re

# Argument -> the option that sets it; filled where options are made.
OPTIONS: dict[str, str] = {}
_ARGUMENT = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def as_options(text: str) -> str:
    """The text with options for arguments: `` `top_k=5` `` becomes `--top-k 5`.

    The rooms below name arguments as Python does, in backticks, since they do not know who calls.
    """
    return _ARGUMENT.sub(_option, text)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    if name not in OPTIONS:
        return found[0]
    shown = "" if value in (None, "True") else " " + value.strip("'\"")
    return OPTIONS[name] + shown
