"""Where the text of each message lies, and which text is of none though the loop over them prints it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import OPENER_FIELDS, RunTable
from tokscore.rendering.attribution.prompts import Prompts


class Turn(NamedTuple):
    """Where the text of one message lies, in characters.

    Attributes:
        start: First character, with the template text before it that nobody owns.
        stop: One past the last, with the template text behind it that nobody owns.
        own_start: First character it wrote itself.
        own_stop: One past the last.
        foreign: From here on there is text of other messages; `stop` without any.
        body: First character of input of the message; `own_stop` where it wrote none.
        named: One past the last role word or name of the message before its body; `own_start` without any.
        last_input: Half-open characters of the last input of the message in its turn; only looked for where
            there is text of other messages.
    """

    start: int
    stop: int
    own_start: int
    own_stop: int
    foreign: int
    body: int
    named: int
    last_input: tuple[int, int] | None


class Turns:
    """The turns of one rendered conversation."""

    def __init__(self, runs: RunTable) -> None:
        """Look through the runs once."""
        self._starts, self._stops = runs.starts.tolist(), runs.stops.tolist()
        self._writer, self._input_of = runs.writer.tolist(), runs.input_of.tolist()
        self._opens = [runs.sources[code] in OPENER_FIELDS for code in runs.source_codes.tolist()]
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
        body = body if first <= body <= last else last + 1
        named = next((self._stops[i] for i in range(body - 1, first - 1, -1) if self._opens[i]), None)
        return Turn(
            start=self._starts[low],
            stop=self._stops[high],
            own_start=self._starts[first],
            own_stop=self._stops[last],
            foreign=self._stops[high] if foreign is None else self._starts[foreign],
            body=self._starts[body] if body <= last else self._stops[last],
            named=self._starts[first] if named is None else named,
            last_input=last_input,
        )

    @cached_property
    def _inputs(self) -> dict[int, list[int]]:
        """Runs that hold text of each message."""
        inputs: dict[int, list[int]] = {}
        for i, message in enumerate(self._input_of):
            inputs.setdefault(message, []).append(i)
        return inputs


def without_owner(
    text: str,
    runs: RunTable,
    roles: Sequence[str],
    prompts: Prompts,
    *,
    bos: str,
    has_generation_prompt: bool,
) -> RunTable:
    """The runs, where the generation prompt and what precedes the first message belong to nobody.

    The latter is a default system prompt or the tool list; BOS alone stays with the first message.

    Args:
        text: The rendered text.
        runs: Its runs.
        roles: Role of every message.
        prompts: What the template prints before an answer.
        bos: What begins every text, "" without.
        has_generation_prompt: The text ends with the opener of the next answer.
    """
    n = len(runs.starts)
    if n and has_generation_prompt and runs.writer[-1] != NO_MESSAGE:
        for prompt in prompts.before(roles[-1]):
            start = len(text) - len(prompt.text)
            if text.endswith(prompt.text) and (runs.input_of[runs.stops > start] == NO_MESSAGE).all():
                runs = _disowned(runs, start, len(text))
                break
    opener = prompts.openers.get(roles[0], "")
    if opener.strip():
        first = int((runs.writer == 0).argmax())
        body = int((runs.input_of == 0).argmax())
        stop = int(runs.starts[body]) - len(opener) if len(runs.starts) else 0
        if (
            first < body
            and runs.writer[first] == 0
            and runs.input_of[body] == 0
            and runs.starts[first] < stop
            and text.startswith(opener, stop)
            and text[runs.starts[first] : stop].strip() != bos
        ):
            runs = _disowned(runs, int(runs.starts[first]), stop)
    return runs


def _disowned(runs: RunTable, start: int, stop: int) -> RunTable:
    """The runs, of which those from character `start` to `stop` are of no message."""
    cuts = np.array(
        [cut for cut in (start, stop) if cut not in runs.starts and cut < runs.stops[-1]], np.int64
    )
    starts = np.sort(np.concatenate([runs.starts, cuts]))
    held_by = np.searchsorted(runs.starts, starts, side="right") - 1
    inside = (starts >= start) & (starts < stop)
    return runs._replace(
        starts=starts,
        stops=np.concatenate([starts[1:], runs.stops[-1:]]),
        owner=np.where(inside, np.int32(NO_MESSAGE), runs.owner[held_by]),
        writer=np.where(inside, np.int32(NO_MESSAGE), runs.writer[held_by]),
        input_of=runs.input_of[held_by],
        is_body=runs.is_body[held_by],
        is_generated=runs.is_generated[held_by],
        source_codes=runs.source_codes[held_by],
    )
