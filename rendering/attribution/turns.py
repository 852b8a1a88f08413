"""Where the text of each message lies."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import NamedTuple

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import RunTable


class Turn(NamedTuple):
    """Where the text of one message lies, in characters.

    Attributes:
        start: First character, with the template text before it that nobody owns.
        stop: One past the last, with the template text behind it that nobody owns.
        own_start: First character it wrote itself.
        own_stop: One past the last.
        foreign: From here on there is text of other messages; `stop` without any.
        body: First character of input of the message; `own_stop` where it wrote none.
        last_input: Half-open characters of the last input of the message in its turn; only looked for where
            there is text of other messages.
    """

    start: int
    stop: int
    own_start: int
    own_stop: int
    foreign: int
    body: int
    last_input: tuple[int, int] | None


class Turns:
    """The turns of one rendered conversation."""

    def __init__(self, runs: RunTable) -> None:
        """Look through the runs once."""
        self._starts, self._stops = runs.starts.tolist(), runs.stops.tolist()
        self._writer, self._input_of = runs.writer.tolist(), runs.input_of.tolist()
        self._last = {writer: i for i, writer in enumerate(self._writer)}
        backwards = range(len(self._writer) - 1, -1, -1)
        self._first = dict(zip(reversed(self._writer), backwards, strict=True))
        self._body = dict(zip(reversed(self._input_of), backwards, strict=True))

    def find(self, message: int) -> Turn | None:
        """The turn of a message, None where the template prints nothing of it."""
        if message not in self._first:
            return None
        writer, n = self._writer, len(self._writer)
        first, last = self._first[message], self._last[message]
        low, high = first, last
        while low > 0 and writer[low - 1] == NO_MESSAGE:
            low -= 1
        while high + 1 < n and writer[high + 1] == NO_MESSAGE:
            high += 1
        mine = {NO_MESSAGE, message}
        foreign = next(
            (i for i in range(first, high + 1) if writer[i] not in mine or self._input_of[i] not in mine),
            None,
        )
        last_input = None
        if foreign is not None:
            inputs = self._inputs.get(message, [])
            k = bisect_right(inputs, high) - 1
            if k >= 0 and inputs[k] >= first:
                last_input = self._starts[inputs[k]], self._stops[inputs[k]]
        body = self._body.get(message, -1)
        return Turn(
            start=self._starts[low],
            stop=self._stops[high],
            own_start=self._starts[first],
            own_stop=self._stops[last],
            foreign=self._stops[high] if foreign is None else self._starts[foreign],
            body=self._starts[body] if first <= body <= last else self._stops[last],
            last_input=last_input,
        )

    @cached_property
    def _inputs(self) -> dict[int, list[int]]:
        """Runs that hold text of each message."""
        inputs: dict[int, list[int]] = {}
        for i, message in enumerate(self._input_of):
            inputs.setdefault(message, []).append(i)
        return inputs
