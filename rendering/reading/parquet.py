"""Objects in the rows of tables: all have the keys of all others, null where a record had none."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_Change = Callable[[Any], Any]  # Any: JSON values


def only_present(kind: pa.DataType, open_keys: Set[str]) -> _Change:
    """A function that leaves out the keys without a value of some objects, such as tool calls and tools.

    It makes objects of maps, whose keys are those of the row; both at any depth.

    Args:
        kind: Arrow type of the values that it takes, as Python has them.
        open_keys: Objects below these have keys of their own, which templates print or ask for; others have
            those of their format.
    """
    return _change(kind, open_keys, is_open=False) or (lambda value: value)


def _change(kind: pa.DataType, open_keys: Set[str], *, is_open: bool) -> _Change | None:
    """None where nothing can be left out."""
    import pyarrow.types as pt

    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _of_list(_change(kind.value_type, open_keys, is_open=is_open))
    if pt.is_map(kind):
        return _of_map(_change(kind.item_type, open_keys, is_open=is_open))
    if not pt.is_struct(kind):
        return None
    changes = {
        field.name: change
        for field in kind
        if (change := _change(field.type, open_keys, is_open=is_open or field.name in open_keys)) is not None
    }
    return _of_object(changes, is_open=is_open) if changes or is_open else None


def _of_list(change: _Change | None) -> _Change | None:
    if change is None:
        return None
    return lambda values: None if values is None else [change(value) for value in values]


def _of_map(change: _Change | None) -> _Change:
    def changed(pairs: list[tuple[Any, Any]] | None) -> dict[str, Any] | None:  # Any: JSON values
        if pairs is None:
            return None
        return {str(key): value if change is None else change(value) for key, value in pairs}

    return changed


def _of_object(changes: dict[str, _Change], *, is_open: bool) -> _Change:
    def changed(found: dict[str, Any] | None) -> dict[str, Any] | None:  # Any: JSON values
        if found is None:
            return None
        return {
            key: changes[key](value) if key in changes else value
            for key, value in found.items()
            if value is not None or not is_open
        }

    return changed
