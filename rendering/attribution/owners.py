"""From characters with origins to tokens with owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE, TEMPLATE_SOURCE
from tokscore.rendering.attribution.tokenizer import Encoding
from tokscore.rendering.templates.origins import (
    REASONING_FIELDS,
    UNTRACKED,
    WHOLE,
    Origin,
    Runs,
    origin_of_path,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


OPENER_FIELDS = ("role", "name")  # a role marker names who speaks
_FEW = 1024  # of so many, each is looked up by itself in less time than all take together
# What parts of a content hold besides text: of Anthropic's blocks, Mistral's thoughts, OpenAI's refusals.
_PART_TEXTS = frozenset({"thinking", "reasoning", "refusal", "content", "name", "input"})
_PART_SCAFFOLD = frozenset({"type", "id"})
_BODY_FIELDS = ("content", "tool_calls", *REASONING_FIELDS)


class RunTable(NamedTuple):
    """Runs as columns, each of shape [runs]; message indices are -1 where there is none.

    Attributes:
        starts: First character.
        stops: One past the last.
        owner: Message the text came from, else the one that wrote it.
        writer: Message whose loop iteration wrote it, else the one it came from.
        input_of: Message whose own text it is, role words and names aside.
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
        """Index of the run that holds each character; fast where they ascend, as those of tokens do."""
        if len(characters) < _FEW or not (characters[1:] >= characters[:-1]).all():
            return np.minimum(np.searchsorted(self.stops, characters, side="right"), len(self.stops) - 1)
        bounds = np.empty(len(self.stops) + 1, np.int64)
        bounds[0], bounds[-1] = 0, len(characters)
        bounds[1:-1] = characters.searchsorted(self.stops[:-1])
        return np.repeat(np.arange(len(self.stops)), bounds[1:] - bounds[:-1])


def run_table(runs: Runs) -> RunTable:
    """The runs of a rendered text as columns."""
    codes: dict[str, int] = {TEMPLATE_SOURCE: 0}
    owner, writer, input_of, is_body, source_codes = [], [], [], [], []
    abroad: list[int] = []
    for run in runs:
        wrote = NO_MESSAGE if run.writer is None else run.writer
        origin = run.origin
        if origin is None:
            source_codes.append(0)
        else:
            source_codes.append(codes.setdefault(origin.root, len(codes)))
        if origin is None or origin.message is None:
            owner.append(wrote)
            writer.append(wrote)
            input_of.append(NO_MESSAGE)
            is_body.append(origin is not None and origin.is_body)
        else:
            if origin.message != wrote != NO_MESSAGE and origin.root == "tool_calls":
                abroad.append(len(owner))
            owner.append(origin.message)
            writer.append(origin.message if run.writer is None else wrote)
            input_of.append(origin.message if origin.root not in OPENER_FIELDS else NO_MESSAGE)
            is_body.append(origin.is_body)
    if abroad:  # a copy of a part of a call, such as the name above its result, is scaffold
        printed = {run.origin for run in runs if run.origin is not None and run.writer == run.origin.message}
        for k in abroad:
            if runs[k].origin in printed:
                owner[k], input_of[k], is_body[k], source_codes[k] = writer[k], NO_MESSAGE, False, 0
    bounds = np.array([0, *accumulate(run.length for run in runs)], np.int64)
    messages = np.array([owner, writer, input_of], np.int32)
    return RunTable(
        starts=bounds[:-1],
        stops=bounds[1:],
        owner=messages[0],
        writer=messages[1],
        input_of=messages[2],
        is_body=np.array(is_body, bool),
        is_generated=np.array([run.generated for run in runs], bool),
        source_codes=np.array(source_codes, np.int16),
        sources=tuple(codes),
    )


class TokenOwners(NamedTuple):
    """Owner and kind of each token; every array has shape [tokens].

    Attributes:
        message_indices: Owner of the first attributed character, -1 without any.
        is_content: Some character is of a message body.
        source_codes: Index into the run table's sources.
        has_input: Some character is text of a message, role words and names aside.
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
    runs = table.at(encoding.starts)
    owners = TokenOwners(
        message_indices=table.owner[runs],
        is_content=table.is_body[runs],
        source_codes=table.source_codes[runs],
        has_input=table.input_of[runs] != NO_MESSAGE,
        is_generated=table.is_generated[runs],
        starts_in_body=table.is_body[runs],
    )
    for k in np.flatnonzero(encoding.stops > table.stops[runs]).tolist():
        last = int(np.searchsorted(table.starts, encoding.stops[k])) - 1
        _join_runs(table, owners, k, range(int(runs[k]), last + 1))
    return owners


def _join_runs(table: RunTable, owners: TokenOwners, token: int, runs: range) -> None:
    """Fill in a token that lies in several runs: what comes first in it decides, and bodies go first."""
    owned = (int(table.owner[run]) for run in runs)
    bodies = [run for run in runs if table.is_body[run]]
    sourced = (int(table.source_codes[run]) for run in bodies or runs)
    owners.message_indices[token] = next((i for i in owned if i != NO_MESSAGE), NO_MESSAGE)
    owners.is_content[token] = bool(bodies)
    owners.source_codes[token] = next((code for code in sourced if code), 0)
    owners.has_input[token] = any(table.input_of[run] != NO_MESSAGE for run in runs)
    owners.is_generated[token] = any(table.is_generated[run] for run in runs)


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
    printed: dict[Origin, list[tuple[int, int]]] = {}
    whole: set[tuple[str | int, ...]] = set()
    for run in runs:
        if run.origin is None or not run.origin.is_body:
            continue
        if run.start >= 0:
            printed.setdefault(run.origin, []).append((run.start, run.start + run.length))
        elif run.start == WHOLE:
            whole.add(run.origin.path)
    dropped = []
    for i, message in enumerate(messages):
        texts: dict[Origin, int] = {}
        for field in _BODY_FIELDS:
            if value := message.get(field):
                _collect_texts(value, ("messages", i, field), texts)
        dropped.append(
            sum(
                length - _covered(printed.get(origin, ()))
                for origin, length in texts.items()
                if not (whole and any(origin.path[:n] in whole for n in range(3, len(origin.path))))
            )
        )
    return dropped


def _collect_texts(value: object, path: tuple[str | int, ...], found: dict[Origin, int]) -> None:
    if isinstance(value, str):
        origin = origin_of_path(path)
        if origin.is_body and (origin.root != "content" or _is_said(path)):
            found[origin] = len(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect_texts(item, (*path, key), found)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _collect_texts(item, (*path, i), found)


def _is_said(path: tuple[str | int, ...]) -> bool:
    """Whether a text in a content is what a message says: all of it, or of a part, but its type and id."""
    return len(path) < 5 or path[-1] == "text" or (path[4] in _PART_TEXTS and path[-1] not in _PART_SCAFFOLD)


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    if len(spans) == 1:
        return spans[0][1] - spans[0][0]
    total = reached = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
