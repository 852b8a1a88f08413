"""Checked access to the fields of a JSON record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from tokscore.dataset.errors import ConversationError, counted
from tokscore.rendering.conversations.values import kind_of, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
_LARGEST_ID = 2**31 - 1
_ROUNDING = 1e-5  # by which a logprob close to 0 can be above it
_LARGEST_NUMBER = float(np.finfo(np.float32).max)


def get(
    record: Mapping[str, Any], key: str, expected: type[T] | tuple[type[T], ...], path: str, words: str
) -> T | None:  # Any: JSON values
    """The value at `key`, None where it is absent or null.

    Args:
        record: A JSON object.
        key: Of the value.
        expected: Its type.
        path: JSON path of the record.
        words: The type in words: "a list of numbers".

    Raises:
        ConversationError: It is of another type.
    """
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ConversationError(f"is {kind_of(value)}; expected {words}.", path=f"{path}.{key}")
    return value


def need(
    record: Mapping[str, Any], key: str, expected: type[T] | tuple[type[T], ...], path: str, words: str
) -> T:  # Any: JSON values
    """As `get`, for a value that has to be there."""
    value = get(record, key, expected, path, words)
    if value is None:
        found = ", ".join(sorted(map(str, record))[:8]) or "nothing"
        raise ConversationError(
            f"is missing; expected {words}, found the keys {found}.", path=f"{path}.{key}"
        )
    return value


def object_at(value: object, path: str) -> Mapping[str, Any]:  # Any: JSON values
    """The value as a JSON object.

    Raises:
        ConversationError: It is none.
    """
    if not isinstance(value, dict):
        raise ConversationError(f"is {kind_of(value)}; expected an object.", path=path)
    return value


def id_array(values: Sequence[object], path: str) -> NDArray[np.int32]:
    """Token ids, int32.

    Raises:
        ConversationError: One of them is no whole number from 0 to 2**31 - 1.
    """
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= _LARGEST_ID:
            raise ConversationError(f"is {shown(value)}; expected a token id.", path=f"{path}[{i}]")
    return np.array(values, np.int32)


def flag_array(values: Sequence[object], n_ids: int, path: str) -> NDArray[np.bool_]:
    """One flag an id, given as true and false or 1 and 0.

    Raises:
        ConversationError: Other values, or not as many as ids.
    """
    if len(values) != n_ids:
        raise ConversationError(
            f"has {counted(len(values), 'value')} for {counted(n_ids, 'token id')}.", path=path
        )
    for i, value in enumerate(values):
        if value not in (0, 1) or isinstance(value, float):
            raise ConversationError(f"is {shown(value)}; expected true or false.", path=f"{path}[{i}]")
    return np.array(values, bool)


def logprob_array(values: Sequence[object], path: str) -> NDArray[np.float32]:
    """Logprobs in nats, float32; null becomes NaN, minus infinity stays.

    Raises:
        ConversationError: One of them is no number, or above 0 by more than rounding explains.
    """
    for i, value in enumerate(values):
        if value is None or value == -math.inf:
            continue
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not abs(value) <= _LARGEST_NUMBER
        ):
            found = "NaN" if isinstance(value, float) and math.isnan(value) else shown(value)
            raise ConversationError(f"is {found}; expected a number or null.", path=f"{path}[{i}]")
        if value > _ROUNDING:
            raise ConversationError(
                f"is {shown(value)}; expected a logprob, which is at most 0.", path=f"{path}[{i}]"
            )
    return np.array([np.nan if value is None else value for value in values], np.float32)


def spread(values: NDArray[np.float32], mask: NDArray[np.bool_], path: str) -> NDArray[np.float32]:
    """Values that were given for the ids under `mask` alone, on all ids, NaN elsewhere.

    Raises:
        ConversationError: There are not as many.
    """
    n = int(mask.sum())
    if len(values) != n:
        raise ConversationError(
            f"has {counted(len(values), 'value')}; the mask holds true {counted(n, 'time')}.", path=path
        )
    found = np.full(len(mask), np.nan, np.float32)
    found[mask] = values
    return found


def metadata_text(
    record: Mapping[str, Any], keys: Sequence[str], **more: Any
) -> str | None:  # Any: JSON values
    """The values of a record at `keys`, and `more`, as JSON text; None without any."""
    found = {key: record[key] for key in keys if record.get(key) is not None}
    found |= {key: value for key, value in more.items() if value is not None}
    return msgspec.json.encode(found).decode() if found else None
