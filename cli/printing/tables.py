"""Printing: results on standard output, everything else on standard error."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tokscore.cli.printing.console import CsvOutput, note, write_json
from tokscore.cli.printing.layout import is_number, lay_out, output_width, shown_number
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.visible import escaped
from tokscore.dataset.errors import agreeing as agreeing
from tokscore.dataset.errors import counted as counted

if TYPE_CHECKING:
    from rich.text import Text

    from tokscore.analytics.groups.grouping import Grouping, GroupKey

Cell = str | int | float | bool | None
# A table is padded to the longest text of a column; JSON and CSV hold all of it.
MAX_TEXT, SHOWN_TEXT = 1_000, 60


class Column(NamedTuple):
    """One column of a printed table.

    Attributes:
        key: Name in JSON and CSV.
        title: Heading in a table.
        digits: Decimals of numbers that are no whole numbers.
    """

    key: str
    title: str
    digits: int = 4


def note_absent_metadata(by: Grouping, groups: Sequence[GroupKey]) -> None:
    """Warn of `metadata.X` that no conversation has."""
    for name in by.absent_metadata(groups):
        note(f"warning: no conversation has {name}.")


def size_in_words(n_bytes: int) -> str:
    """Bytes in the unit that suits: 512 B, 3.4 MB, 1.2 TB."""
    value, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1_000:
            break
        value, unit = value / 1_000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def print_rows(
    columns: Sequence[Column], rows: Iterable[Mapping[str, object]], form: Format, *, title: str | None = None
) -> None:
    """Print one result table on standard output.

    Args:
        columns: What to show, in order.
        rows: Values by column key; further keys are printed in JSON only. In JSON and CSV they may be as many
            as they want, one is held at a time.
        form: Table, JSON (a list of objects) or CSV.
        title: Heading of a table.
    """
    if form is Format.JSON:
        for piece in _json_list(rows):
            write_json(piece)
        write_json("\n")
    elif form is Format.CSV:
        writer = csv.writer(CsvOutput(), lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows(
            ["" if row[column.key] is None else row[column.key] for column in columns] for row in rows
        )
    else:
        _print_table(columns, list(rows), title)


def print_json(value: Any) -> None:  # Any: JSON values
    """Print JSON on standard output; there are no NaN or infinite numbers in it."""
    write_json(_json(value) + "\n")


def print_json_with_rows(head: Mapping[str, Any], key: str, rows: Iterable[Mapping[str, object]]) -> None:
    """Print one JSON object that ends with a list of any length, of which one row is held at a time.

    Args:
        head: What comes before the list; JSON values.
        key: Of the list.
        rows: Its objects.
    """
    write_json("{\n")
    for name, value in head.items():
        write_json(f"  {_json(name)}: {_indented(_json(value), 2)},\n")
    write_json(f"  {_json(key)}: ")
    for piece in _json_list(rows):
        write_json(_indented(piece, 2))
    write_json("\n}\n")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def _indented(text: str, n: int) -> str:
    return text.replace("\n", "\n" + " " * n)


def _json_list(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    opening = "[\n  "
    for row in rows:
        yield opening + _indented(_json(row), 2)
        opening = ",\n  "
    yield "[]" if opening.startswith("[") else "\n]"


def print_all_columns(wanted: bool) -> None:
    """Print tables with all their columns from now on, however wide the terminal is."""
    _Wide.is_wanted, _Wide.is_option = wanted, True


class _Wide:
    """What `--wide` says, for all tables of a process."""

    is_wanted = False
    is_option = False


def cut(text: str) -> str:
    """A text that a table, or a line, has room for."""
    return text if len(text) <= MAX_TEXT else f"{text[:SHOWN_TEXT]}… ({len(text):,} letters)"


def _print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], title: str | None) -> None:
    from rich import box
    from rich.table import Table

    from tokscore.cli.printing.styled import StyledConsole

    cells = [
        [escaped(cut(_shown(row[column.key], column.digits)), kept="") for column in columns] for row in rows
    ]
    headings = [column.title for column in columns]
    width = None if _Wide.is_wanted else output_width()
    layout = lay_out(headings, cells, width)
    if not layout.columns:
        _print_records(headings, cells, title)
        return
    heading = None if title is None else _in_cell(title)
    console = StyledConsole(width=max(layout.total, len(title or "")))
    table = Table(
        title=heading,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0 if layout.is_narrow else 1),
    )
    for index, column_width in zip(layout.columns, layout.widths, strict=True):
        is_text = not all(is_number(row[index]) for row in cells)
        table.add_column(
            _in_cell(headings[index]),
            justify="left" if is_text else "right",
            width=column_width,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(_in_cell(row[index]) for index in layout.columns))
    console.print(table)
    if layout.hidden:
        names = ", ".join(headings[index] for index in layout.hidden)
        hint = "; --wide prints all" if _Wide.is_option else ""
        StyledConsole(width=width).print(_in_cell(f"  not shown: {names}{hint}"))


def _print_records(headings: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    """One value a line, for terminals that are narrower than a table of one number."""
    from tokscore.cli.printing.styled import StyledConsole

    console = StyledConsole()
    if title is not None:
        console.print(_in_cell(title))
    for row in cells:
        console.print()
        for name, cell in zip(headings, row, strict=True):
            console.print(_in_cell(f"{name}: {cell}"), soft_wrap=True)


def _in_cell(text: str) -> Text:
    from rich.text import Text

    return Text(escaped(text, kept=""))


def _shown(value: object, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return shown_number(value, digits)
    return f"{value:,}" if isinstance(value, int) else str(value)
