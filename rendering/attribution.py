"""From characters with origins to tokens with owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.rendering.origins import REASONING_FIELDS, SYNTAX, UNTRACKED, WHOLE, Runs, origin_of_path
from tokscore.rendering.rendered import NO_MESSAGE, TEMPLATE_SOURCE
from tokscore.rendering.tokenizer import Encoding

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RunTable(NamedTuple):
    """Runs as columns, each of shape [runs]; message indices are -1 where there is none.

    Attributes:
        starts: First character.
        stops: One past the last.
        owner: Message the text came from, else the one that wrote it.
        writer: Message whose loop iteration wrote it, else the one it came from.
        input_of: Message whose own text it is, role words aside.
        is_body: Part of what a message says.
        is_generated: Inside a generation block.
        source_codes: Index into `sources`.
        sources: Field path roots; the first is the template.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    owner: NDArray[np.int32]
    writer: NDArray[np.int32]
    input_of: NDArray[np.int32]
    is_body: NDArray[np.bool_]
    is_generated: NDArray[np.bool_]
    source_codes: NDArray[np.int16]
    sources: tuple[str, ...]

    def at(self, characters: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the run that holds each character."""
        return np.minimum(np.searchsorted(self.stops, characters, side="right"), len(self.stops) - 1)

    def first_overlap(
        self, wanted: NDArray[np.bool_], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """First wanted run that each half-open span of characters touches, -1 where there is none."""
        n = len(wanted)
        index = np.where(wanted, np.arange(n), n)
        following = np.minimum.accumulate(index[::-1])[::-1]
        found = following[self.at(starts)]
        touches = (found < n) & (self.starts[np.minimum(found, n - 1)] < stops)
        return np.where(touches, found, -1)


def run_table(runs: Runs) -> RunTable:
    """The runs of a rendered text as columns."""
    codes: dict[str, int] = {TEMPLATE_SOURCE: 0}
    owner, writer, input_of, is_body, source_codes = [], [], [], [], []
    for run in runs:
        origin = run.origin
        message = None if origin is None else origin.message
        first = message if message is not None else run.writer
        last = run.writer if run.writer is not None else message
        owner.append(NO_MESSAGE if first is None else first)
        writer.append(NO_MESSAGE if last is None else last)
        is_input = message is not None and origin is not None and origin.root != "role"
        input_of.append(message if is_input else NO_MESSAGE)
        is_body.append(origin is not None and origin.is_body)
        source_codes.append(0 if origin is None else codes.setdefault(origin.root, len(codes)))
    stops = np.cumsum([run.length for run in runs], dtype=np.int64)
    return RunTable(
        starts=np.concatenate([np.zeros(1, np.int64), stops[:-1]]) if len(stops) else stops,
        stops=stops,
        owner=np.array(owner, np.int32),
        writer=np.array(writer, np.int32),
        input_of=np.array(input_of, np.int32),
        is_body=np.array(is_body, bool),
        is_generated=np.array([run.generated for run in runs], bool),
        source_codes=np.array(source_codes, np.int16),
        sources=tuple(codes),
    )


class TokenOwners(NamedTuple):
    """What each token stands for, each of shape [tokens].

    Attributes:
        message_indices: Owner of the first attributed character, -1 without any.
        is_content: Some character is of a message body.
        source_codes: Index into the run table's sources.
        has_input: Some character is text of a message, role words aside.
        is_generated: Some character lies in a generation block.
        starts_in_body: Its first character is of a message body.
    """

    message_indices: NDArray[np.int32]
    is_content: NDArray[np.bool_]
    source_codes: NDArray[np.int16]
    has_input: NDArray[np.bool_]
    is_generated: NDArray[np.bool_]
    starts_in_body: NDArray[np.bool_]


def token_owners(table: RunTable, encoding: Encoding) -> TokenOwners:
    """Carry the owners of characters over to tokens by their offsets."""
    starts = encoding.starts
    stops = np.maximum(encoding.stops, starts + 1)
    owned = table.first_overlap(table.owner != NO_MESSAGE, starts, stops)
    body = table.first_overlap(table.is_body, starts, stops)
    sourced = table.first_overlap(table.source_codes != 0, starts, stops)
    source_run = np.where(body >= 0, body, sourced)
    return TokenOwners(
        message_indices=np.where(owned >= 0, table.owner[owned], NO_MESSAGE).astype(np.int32),
        is_content=body >= 0,
        source_codes=np.where(source_run >= 0, table.source_codes[source_run], 0).astype(np.int16),
        has_input=table.first_overlap(table.input_of != NO_MESSAGE, starts, stops) >= 0,
        is_generated=table.first_overlap(table.is_generated, starts, stops) >= 0,
        starts_in_body=table.is_body[table.at(starts)],
    )


def untracked_characters(runs: Runs) -> dict[int, int]:
    """Characters whose origin was lost, by the message that wrote them (-1 where unknown)."""
    counts: dict[int, int] = {}
    for run in runs:
        if run.origin is UNTRACKED:
            writer = NO_MESSAGE if run.writer is None else run.writer
            counts[writer] = counts.get(writer, 0) + run.length
    return counts


def printed_as_python(runs: Runs) -> set[int]:
    """Messages of which a list or object was printed as Python shows it, instead of its text."""
    return {
        run.origin.message
        for run in runs
        if run.start == WHOLE and run.origin is not None and run.origin.message is not None
    }


def dropped_characters(messages: Sequence[Mapping[str, Any]], runs: Runs) -> list[int]:
    """Characters of each message's body that the template left out.

    Args:
        messages: As the template saw them.
        runs: Of the rendered text.

    Returns:
        One count per message. A text printed twice is not counted twice.
    """
    printed: dict[tuple[str | int, ...], list[tuple[int, int]]] = {}
    whole: set[tuple[str | int, ...]] = set()
    for run in runs:
        if run.origin is None or not run.origin.is_body:
            continue
        if run.start >= 0:
            printed.setdefault(run.origin.path, []).append((run.start, run.start + run.length))
        elif run.start == WHOLE:
            whole.add(run.origin.path)
    dropped = []
    for i, message in enumerate(messages):
        texts: dict[tuple[str | int, ...], int] = {}
        for field in ("content", "tool_calls", *REASONING_FIELDS):
            _collect_texts(message.get(field), ("messages", i, field), texts)
        dropped.append(
            sum(
                length - _covered(printed.get(path, []))
                for path, length in texts.items()
                if not any(path[:n] in whole for n in range(3, len(path)))
            )
        )
    return dropped


def encoded_twice(messages: Sequence[Mapping[str, Any]], runs: Runs) -> set[int]:
    """Messages whose tool-call arguments are JSON text that the template encoded as a JSON string again.

    Args:
        messages: As the template saw them.
        runs: Of the rendered text.
    """
    texts = {
        ("messages", i, "tool_calls", j, *keys, "arguments")
        for i, message in enumerate(messages)
        for j, call in enumerate(message.get("tool_calls") or ())
        for keys, function in (((), call), (("function",), call.get("function") or {}))
        if isinstance(function.get("arguments"), str)
    }
    if not texts:
        return set()
    return {
        run.origin.message
        for run in runs
        if run.start == SYNTAX and run.origin is not None and run.origin.path in texts
        if run.origin.message is not None
    }


def _collect_texts(
    value: object, path: tuple[str | int, ...], found: dict[tuple[str | int, ...], int]
) -> None:
    if isinstance(value, str):
        origin = origin_of_path(path)
        is_text = origin.root != "content" or len(path) == 3 or path[-1] == "text"
        if origin.is_body and is_text:
            found[origin.path] = len(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect_texts(item, (*path, key), found)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _collect_texts(item, (*path, i), found)


def _covered(spans: list[tuple[int, int]]) -> int:
    total = reached = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
