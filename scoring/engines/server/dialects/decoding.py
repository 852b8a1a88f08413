"""Numbers of a JSON text, straight into arrays: no Python object for a candidate."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# What a number stands for: a key such as "123" or "token_id:123", the values of two keys, or anything else.
KEY, LOGPROB, RANK, VALUE = 0, 1, 2, 3
PREFIX = b"token_id:"


class Numbers(NamedTuple):
    """The numbers of a list of rows, in the order of the text.

    Attributes:
        values: float64 [numbers]; NaN for null and for text.
        kinds: int8 [numbers], `KEY`, `LOGPROB`, `RANK` or `VALUE`.
        starts: int64 [rows + 1], where each row begins among them, and where the last one ends.
    """

    values: NDArray[np.float64]
    kinds: NDArray[np.int8]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Numbers of each row, int64 [rows]."""
        return np.diff(self.starts)


class NotNumbersError(ValueError):
    """The text is no list of rows of numbers."""


def read_numbers(text: bytes | memoryview) -> Numbers:
    """The numbers of a JSON list.

    Keys that are no numbers are left out with their values, except "logprob" and "rank".

    Args:
        text: Valid JSON.

    Raises:
        NotNumbersError: It is no list.
    """
    found = np.frombuffer(text, np.uint8)
    # Every number but the first of a list stands behind one of these.
    most = int(np.count_nonzero((found == ord(",")) | (found == ord(":")) | (found == ord("{")))) + 2
    values = np.empty(most, np.float64)
    kinds = np.empty(most, np.int8)
    starts = np.empty(most + 1, np.int64)
    n_values, n_rows = _scanner()(found, np.frombuffer(PREFIX, np.uint8), values, kinds, starts)
    if n_rows < 0:
        raise NotNumbersError(f"expected a list of numbers, found other text at byte {n_values:,}")
    return Numbers(values[:n_values], kinds[:n_values], starts[: n_rows + 1])


@cache
def _scanner() -> Callable[..., Any]:  # Any: two numbers
    from numba import njit

    compiled: Callable[..., Any] = njit(cache=True, nogil=True)(_scan)
    return compiled


def _scan(  # type: ignore[no-untyped-def]
    text, prefix, values, kinds, starts
):
    """Fill the arrays; returns their lengths, or the place of what is wrong and -1."""
    n = len(text)
    at = n_values = n_rows = depth = 0
    kind = 3
    # Depth of a value that is left out; 0 where none is.
    skipped = 0
    leaves_out_next = False
    while at < n:
        c = text[at]
        if c == 32 or c == 9 or c == 10 or c == 13 or c == 44:  # space, comma
            if c == 44 and skipped == 0:
                kind, leaves_out_next = 3, False
            at += 1
            continue
        if c == 93 or c == 125:  # ] }
            if depth == skipped:
                skipped = 0
            depth -= 1
            at += 1
            kind, leaves_out_next = 3, False
            continue
        if depth == 0:
            if c != 91 or n_rows:
                return at, -1
        elif depth == 1:
            starts[n_rows] = n_values
            n_rows += 1
        if c == 91 or c == 123:  # [ {
            depth += 1
            if leaves_out_next and skipped == 0:
                skipped = depth
            kind, leaves_out_next = 3, False
            at += 1
            continue
        if c == 34:  # "
            start = at + 1
            at = start
            while at < n and text[at] != 34:
                at += 2 if text[at] == 92 else 1
            stop = at
            at += 1
            while at < n and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
                at += 1
            is_key = at < n and text[at] == 58
            if is_key:
                at += 1
            if skipped:
                continue
            has_prefix = stop - start > len(prefix)
            if has_prefix:
                for i in range(len(prefix)):
                    if text[start + i] != prefix[i]:
                        has_prefix = False
                        break
            first = start + len(prefix) if has_prefix else start
            is_number = stop > first and stop - first < 12 and (has_prefix or is_key)
            whole = 0
            for i in range(first, stop):
                if text[i] < 48 or text[i] > 57:
                    is_number = False
                    break
                whole = whole * 10 + (text[i] - 48)
            if is_key:
                leaves_out_next = False
                kind = 3
                if is_number:
                    values[n_values] = whole
                    kinds[n_values] = 0
                    n_values += 1
                elif stop - start == 7 and text[start] == 108 and text[start + 3] == 112:  # logprob
                    kind = 1
                elif stop - start == 4 and text[start] == 114 and text[start + 3] == 107:  # rank
                    kind = 2
                else:
                    leaves_out_next = True
            elif leaves_out_next:
                leaves_out_next = False
            else:
                values[n_values] = whole if is_number else np.nan
                kinds[n_values] = kind
                n_values += 1
            continue
        # A number, null, true or false.
        start = at
        value = np.nan
        if c == 45 or (48 <= c <= 57):
            is_negative = c == 45
            if is_negative:
                at += 1
            whole_digits = np.int64(0)
            exponent = 0
            n_digits = 0
            is_fraction = False
            while at < n and (48 <= text[at] <= 57 or text[at] == 46):
                if text[at] == 46:
                    is_fraction = True
                else:
                    # 18 digits fit; a float64 has 17.
                    if n_digits < 18:
                        whole_digits = whole_digits * 10 + (text[at] - 48)
                        n_digits += 1 if whole_digits else 0
                        exponent -= 1 if is_fraction else 0
                    elif not is_fraction:
                        exponent += 1
                at += 1
            if at < n and (text[at] == 101 or text[at] == 69):  # e
                at += 1
                sign = 1
                if text[at] == 45 or text[at] == 43:
                    sign = -1 if text[at] == 45 else 1
                    at += 1
                power = 0
                while at < n and 48 <= text[at] <= 57:
                    power = min(power * 10 + (text[at] - 48), 10_000)
                    at += 1
                exponent += sign * power
            value = float(whole_digits)
            # In steps, so that neither side leaves the range on its own.
            while exponent > 0 and value != 0.0 and value < 1e308:
                step = min(exponent, 22)
                value *= 10.0**step
                exponent -= step
            while exponent < 0 and value != 0.0:
                step = min(-exponent, 22)
                value /= 10.0**step
                exponent += step
            if is_negative:
                value = -value
        else:
            while at < n and 97 <= text[at] <= 122:
                at += 1
            if at == start:
                return at, -1
        if skipped:
            continue
        if leaves_out_next:
            leaves_out_next = False
            continue
        values[n_values] = value
        kinds[n_values] = kind
        n_values += 1
    if depth != 0:
        return at, -1
    starts[n_rows] = n_values
    return n_values, n_rows
