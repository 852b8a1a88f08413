"""Printing: results on standard output, everything else on standard error."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tokscore.cli.printing.option_names import as_options
from tokscore.cli.printing.output_format import Format
from tokscore.dataset.errors import counted as counted

if TYPE_CHECKING:
    from tokscore.analytics.groups.grouping import Grouping, GroupKey

Cell = str | int | float | bool | None
_LINE_EVERY_S = 30.0
_PLAIN_WIDTH = 200


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


def note(text: str) -> None:
    """A line for people, on standard error."""
    print(as_options(text), file=sys.stderr, flush=True)


def note_absent_metadata(by: Grouping, groups: Sequence[GroupKey]) -> None:
    """Warn of `metadata.X` that no conversation has."""
    for name in by.absent_metadata(groups):
        note(f"warning: no conversation has {name}.")


def duration(elapsed_s: float) -> str:
    """Seconds, or hours and minutes where it is long: 42 s, 3 min, 2 h 5 min."""
    if elapsed_s < 100:
        return f"{elapsed_s:.0f} s"
    minutes = round(elapsed_s / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"


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
            sys.stdout.write(piece)
        print()
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([column.key for column in columns])
        writer.writerows(
            ["" if row[column.key] is None else row[column.key] for column in columns] for row in rows
        )
    else:
        _print_table(columns, list(rows), title)


def print_json(value: Any) -> None:  # Any: JSON values
    """Print JSON on standard output; there are no NaN or infinite numbers in it."""
    print(_json(value))


def print_json_with_rows(head: Mapping[str, Any], key: str, rows: Iterable[Mapping[str, object]]) -> None:
    """Print one JSON object that ends with a list of any length, of which one row is held at a time.

    Args:
        head: What comes before the list; JSON values.
        key: Of the list.
        rows: Its objects.
    """
    print("{")
    for name, value in head.items():
        print(f"  {_json(name)}: {_indented(_json(value), 2)},")
    sys.stdout.write(f"  {_json(key)}: ")
    for piece in _json_list(rows):
        sys.stdout.write(_indented(piece, 2))
    print("\n}")


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


def _print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    table = Table(title=None if title is None else Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        is_text = any(isinstance(row[column.key], str) for row in rows)
        table.add_column(Text(column.title), justify="left" if is_text else "right", no_wrap=is_text)
    for row in rows:
        table.add_row(*(Text(_shown(row[column.key], column.digits)) for column in columns))
    console.print(table)


def _shown(value: object, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class ProgressLine:
    """Progress on standard error: a bar on a terminal, otherwise one plain line every 30 s.

    The rate is taken from the last update with nothing done, or from the beginning.
    """

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self._label = label
        self._unit = unit
        self._total = total
        self._started = self._shown = time.monotonic()
        self._bar: Any = None  # Any: rich is imported only on a terminal
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def turn_to(self, label: str, total: int | None, unit: str) -> None:
        """Go on with other work, of which nothing is done."""
        self._label, self._total, self._unit = label, total, unit
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._task, description=label, total=total, text="")

    def update(self, done: int, n_tokens: int, total: int | None = None) -> None:
        """Show `done` of the total, and tokens a second.

        Args:
            done: In the unit of this line.
            n_tokens: Tokens so far.
            total: Replaces the total, where it becomes known only now.
        """
        self._total = self._total if total is None else total
        now = time.monotonic()
        if not done:
            self._started = now
        elapsed_s = max(now - self._started, 1e-9)
        of = "" if self._total is None else f"/{self._total:,}"
        text = f"{done:,}{of} {self._unit}, {n_tokens / elapsed_s:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, text=text)
        elif now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            if self._total and done:
                text += f", {duration(elapsed_s * (self._total - done) / done)} left"
            note(f"{self._label}: {text}")
