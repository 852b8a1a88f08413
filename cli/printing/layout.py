"""The shape of a table: which columns fit, how wide each is, and how numbers read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tokscore.cli.printing.console import is_terminal

# Between two columns, and at both ends; and where room is scarce.
_WIDE, _NARROW = (3, 4), (2, 3)
_LEAST_TEXT = 12
_KEPT_NUMBERS, _LEAST_NUMBERS = 3, 2
_LARGE = 1e6
_NUMBER = re.compile(r"[-+]?[\d,.]+(?:e[-+]?\d+)?%?")
_OTHER_NUMBERS = frozenset({"", "-", "infinite", "unbounded", "nan", "inf", "-inf"})


class Layout(NamedTuple):
    """How a table is printed.

    Attributes:
        columns: Indices of the columns that are shown; empty where each row is printed as a record.
        widths: Of each of these, in cells.
        hidden: Indices of the others.
        total: Width of the table.
        is_narrow: Columns stand closer.
    """

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    total: int = 0
    is_narrow: bool = False


def output_width() -> int | None:
    """Cells in a line: what `COLUMNS` says, the terminal's, or None where output goes elsewhere."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return os.get_terminal_size(1).columns if is_terminal() else None


def lay_out(headings: Sequence[str], cells: Sequence[Sequence[str]], width: int | None) -> Layout:
    """The columns that fit; numbers are never cut.

    Headings break between words. Numbers of the last columns are left out first, then text wraps; where even
    that is too wide, rows are records.

    Args:
        headings: Of the columns, those asked for most first.
        cells: Of every row, one a column.
        width: Cells in a line; None for as many as the table takes.
    """
    from rich.cells import cell_len

    n = len(headings)
    texts = [index for index in range(n) if not all(map(is_number, (row[index] for row in cells)))]
    shown = list(range(n))

    def fitting(words: Sequence[Sequence[str]]) -> list[int]:
        return [
            max(map(cell_len, (*words[index], *(row[index] for row in cells))), default=0)
            for index in range(n)
        ]

    def used(between: int, around: int) -> int:
        return sum(widths[index] for index in shown) + between * (len(shown) - 1) + around

    def excess() -> int:
        return 0 if width is None else used(*_NARROW) - width

    widths = fitting([[heading] for heading in headings])
    if excess() > 0:
        widths = fitting([heading.split() for heading in headings])
    numbers = [index for index in shown if index not in texts]
    while excess() > 0 and len(numbers) > _KEPT_NUMBERS:
        shown.remove(numbers.pop())
    needed = {index: widths[index] for index in texts}
    while excess() > 0:
        for index, cells_of in _levelled(needed, sum(needed.values()) - excess()).items():
            widths[index] = cells_of
        if excess() <= 0 or len(numbers) <= _LEAST_NUMBERS:
            break
        shown.remove(numbers.pop())
        widths = [needed.get(index, cells_of) for index, cells_of in enumerate(widths)]
    if excess() > 0:
        return Layout((), (), ())
    hidden = tuple(index for index in range(n) if index not in shown)
    is_narrow = width is not None and used(*_WIDE) > width
    total = used(*(_NARROW if is_narrow else _WIDE))
    return Layout(tuple(shown), tuple(widths[index] for index in shown), hidden, total, is_narrow)


def _levelled(needed: Mapping[int, int], room: int) -> dict[int, int]:
    """Widths of columns of text that share some room: short ones have what they need, the others alike.

    Args:
        needed: Cells that each would take.
        room: Cells for all of them; none has less than 12, or than it needs.
    """
    rest, n_left = room, len(needed)
    limit = 0
    for cells_of in sorted(needed.values()):
        limit = max(rest // n_left, _LEAST_TEXT)
        if cells_of > limit:
            break
        rest, n_left = rest - cells_of, n_left - 1
    return {index: min(cells_of, limit) for index, cells_of in needed.items()}


def is_number(cell: str) -> bool:
    """Whether the text is a number, an interval, or says why there is none."""
    parts = cell.strip("[]").split(", ") if cell.startswith("[") else [cell]
    return all(part in _OTHER_NUMBERS or _NUMBER.fullmatch(part) is not None for part in parts)


def shown_number(value: float, digits: int) -> str:
    """A number with so many decimals, or three digits and a power of ten where these would say nothing."""
    is_small = 0 < abs(value) < 0.5 * 10**-digits
    if (abs(value) >= _LARGE and value == value and abs(value) != float("inf")) or is_small:
        digit, _, power = f"{value:.2e}".partition("e")
        return f"{digit}e{int(power)}"
    return f"{value:,.{digits}f}"
