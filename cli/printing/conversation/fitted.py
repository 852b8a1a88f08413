"""A table without lines, in as much of a terminal as there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokscore.cli.printing.layout import is_number, lay_out

if TYPE_CHECKING:
    from tokscore.cli.printing.styled import StyledConsole


def print_fitted(console: StyledConsole, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the columns that fit, and name the others; rows are records where hardly any does.

    Args:
        console: Where to.
        headings: Of the columns, those asked for most first.
        rows: Their cells, visible already.
    """
    from rich.table import Table
    from rich.text import Text

    layout = lay_out(headings, rows, console.width)
    if not layout.columns:
        for row in rows:
            console.print()
            for name, cell in zip(headings, row, strict=True):
                console.print(Text(f"{name}: {cell}"), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, width in zip(layout.columns, layout.widths, strict=True):
        is_text = not all(is_number(row[index]) for row in rows)
        table.add_column(
            headings[index], justify="left" if is_text else "right", width=width, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in layout.columns))
    console.print(table)
    if layout.hidden:
        console.print(Text(f"not shown: {', '.join(headings[index] for index in layout.hidden)}"))
