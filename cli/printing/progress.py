"""Progress on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from tokscore.cli.printing.console import is_terminal, note

_LINE_EVERY_S = 30.0


def duration(elapsed_s: float) -> str:
    """Seconds, or hours and minutes where it is long: 42 s, 3 min, 2 h 5 min."""
    if elapsed_s < 100:
        return f"{elapsed_s:.0f} s"
    minutes = round(elapsed_s / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"


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
        if is_terminal(stderr=True):
            from rich.progress import (
                BarColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            from tokscore.cli.printing.styled import StyledConsole

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),  # moves while nothing is done, too
                TimeRemainingColumn(),
                console=StyledConsole(stderr=True),
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
