"""A record that Python has, as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokscore.dataset.errors import UsageError


def record_line(record: object, name: str = "the record") -> str:
    """The record as JSON, without a newline; arrays of numpy become lists.

    Args:
        record: A mapping.
        name: How an error calls it.

    Raises:
        UsageError: It is none, or holds what JSON does not have.
    """
    if not isinstance(record, Mapping):
        raise UsageError(
            f"{name} is {type(record).__name__}; expected a mapping such as "
            '{"messages": [{"role": "user", "content": "Hi"}]}.'
        )
    try:
        return json.dumps(dict(record), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} cannot be written as JSON: {error}.") from error


def _plain(value: object) -> object:
    """What JSON has for a value it does not know: numbers and lists for those of numpy."""
    if isinstance(value, Mapping):
        return dict(value)
    as_list = getattr(value, "tolist", None)
    if as_list is None:
        raise TypeError(f"it holds {type(value).__name__}")
    plain: object = as_list()
    return plain
