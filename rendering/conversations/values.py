"""How errors name the values of a record."""

from __future__ import annotations

import msgspec

from tokscore.dataset.errors import foreign


def kind_of(value: object) -> str:
    """The kind of a JSON value in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: object) -> str:
    """A JSON value as text, shortened."""
    text = foreign(msgspec.json.encode(value).decode())
    return text if len(text) <= 40 else f"{text[:37]}…"
