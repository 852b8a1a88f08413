"""Which trajectories of a dataset would have stopped under limits on turns and tokens, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.trajectories.limits import LimitName, Stop, TrajectoryLimits, first_stop
from tokscore.dataset.choices import LimitCount
from tokscore.dataset.errors import UsageError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.tokens import RenderedTokens
from tokscore.rendering.conversations.branch_tree import WholeBranch, branch_tree
from tokscore.rendering.conversations.trace import Trace

_ASSISTANT = "assistant"


def parse_limits(texts: Sequence[str]) -> TrajectoryLimits:
    """Limits written as `name=number`.

    Raises:
        UsageError: One is written otherwise, has another name, or comes twice.
    """
    found: dict[str, int] = {}
    expected = f"expected {', '.join(f'{name}=N' for name in LimitName)} with N from 1 on"
    for text in texts:
        name, _, number = text.partition("=")
        if name not in list(LimitName) or not (number.isascii() and number.isdecimal() and int(number)):
            raise UsageError(f"`limit` is {text!r}; {expected}.")
        if name in found:
            raise UsageError(f"`limit` {name} is given twice, as {found[name]} and {number}; give one.")
        found[name] = int(number)
    return TrajectoryLimits(**found)


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One trajectory that would have stopped, or of which that cannot be told.

    Attributes:
        conversation: Its id.
        stop: Where it stops; None where it cannot be told which tokens a model generated.
    """

    conversation: str
    stop: Stop | None

    def to_dict(self) -> dict[str, object]:
        """For JSON and CSV; null where it cannot be told."""
        stop = self.stop
        counts = (None, None, None) if stop is None or stop.counts is None else stop.counts
        return {
            "conversation": self.conversation,
            "turn": None if stop is None else stop.turn,
            "limit": None if stop is None else stop.limit.value,
            **dict(zip(("input", "output", "total"), counts, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class LimitReport:
    """Effects of limits on trajectories.

    Attributes:
        limits: As given.
        count: How shared tokens were counted.
        rows: Trajectories that would have stopped or cannot be told, in the order of the dataset.
        n_conversations: Trajectories, whatever their branches.
        n_errors: Records that became error rows, of which nothing is known.
    """

    limits: TrajectoryLimits
    count: LimitCount
    rows: tuple[LimitRow, ...]
    n_conversations: int
    n_errors: int

    @property
    def n_unknown(self) -> int:
        """Trajectories of which it cannot be told."""
        return sum(row.stop is None for row in self.rows)

    @property
    def n_finished(self) -> int:
        """Trajectories that reach no limit."""
        return self.n_conversations - len(self.rows)

    def by_limit(self) -> dict[LimitName, int]:
        """Trajectories that each of the given limits would have stopped."""
        counted = Counter(row.stop.limit for row in self.rows if row.stop is not None)
        return {name: counted[name] for name, _ in self.limits.given()}

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "limits": {name.value: value for name, value in self.limits.given()},
            "limit_count": self.count.value,
            "rows": [row.to_dict() for row in self.rows],
            "n_stopped": {name.value: n for name, n in self.by_limit().items()},
            "n_finished": self.n_finished,
            "n_unknown": self.n_unknown,
            "n_conversations": self.n_conversations,
            "n_errors": self.n_errors,
        }


def apply_limits(
    dataset: Path | str, limits: TrajectoryLimits, *, count: LimitCount = LimitCount.UNIQUE
) -> LimitReport:
    """Where the trajectories of a dataset would have stopped.

    Args:
        dataset: Directory of tokens or of scores; one trajectory is held at a time.
        limits: What ends a trajectory.
        count: How tokens that the branches of one trajectory share are counted.

    Raises:
        InputError: No whole dataset.
    """
    opened = Dataset(Path(dataset))
    traces = ((conversation_id, as_trace(branches)) for conversation_id, branches in _trajectories(opened))
    n_errors = sum(1 for _ in opened.failures())
    return limit_traces(traces, limits, count=count, n_errors=n_errors)


def limit_traces(
    traces: Iterable[tuple[str, Trace]],
    limits: TrajectoryLimits,
    *,
    count: LimitCount = LimitCount.UNIQUE,
    n_errors: int = 0,
) -> LimitReport:
    """Where trajectories with recorded ids or reported usage would have stopped.

    Args:
        traces: With the id of each.
        limits: What ends a trajectory.
        count: How tokens that the branches of one trajectory share are counted.
        n_errors: Records beside them that cannot be used.

    Raises:
        ConversationError: The tokens of one cannot be counted.
    """
    rows, n_conversations = [], 0
    for conversation_id, trace in traces:
        n_conversations += 1
        if any(node.tokens is not None and (node.tokens.sampled_mask == -1).any() for node in trace.nodes):
            rows.append(LimitRow(conversation_id, None))
        elif stop := first_stop(trace, limits, count):
            rows.append(LimitRow(conversation_id, stop))
    return LimitReport(limits, count, tuple(rows), n_conversations, n_errors)


def _trajectories(dataset: Dataset) -> Iterator[tuple[str, list[RenderedTokens]]]:
    """The branches of each conversation, which are consecutive rows, also from one part to the next."""
    conversations = (each for part in dataset.manifest.parts for each in dataset.read_part(part.index))
    for conversation_id, group in groupby(conversations, key=lambda each: each.row.conversation_id):
        yield conversation_id, [each.tokens for each in group]


def as_trace(branches: Sequence[RenderedTokens]) -> Trace:
    """The branches of one trajectory as a tree without text, as `merging.branch_tree` makes it.

    An assistant's message in which a model generated something is a turn, which its last tokens end; a
    generated stop that opens the next message (GLM's `<|user|>`) is one of them.

    Args:
        branches: In the order in which they were made.
    """
    return branch_tree([_whole(branch) for branch in branches])


def _whole(branch: RenderedTokens) -> WholeBranch:
    owners = _owners(branch)
    said = [({"role": role},) for role in branch.message_roles]
    return WholeBranch(branch.token_ids, branch.sampled_mask, owners, said, _turn_stops(branch, owners))


def _owners(branch: RenderedTokens) -> NDArray[np.int32]:
    """The message of each token, that of a generated stop the one it ends; shape [tokens]."""
    owners = branch.message_indices.copy()
    is_assistant = _is_assistant(branch)
    strays = (branch.sampled_mask[1:] == 1) & ~is_assistant[owners[1:]] & is_assistant[owners[:-1]]
    owners[1:][strays] = owners[:-1][strays]
    return owners


def _turn_stops(branch: RenderedTokens, owners: NDArray[np.int32]) -> frozenset[int]:
    """Where the generated messages end."""
    stops = np.zeros(len(branch.messages) + 1, np.int64)
    stops[owners] = np.arange(1, len(owners) + 1)
    turns = np.unique(owners[branch.sampled_mask == 1])
    return frozenset(stops[turns[_is_assistant(branch)[turns]]].tolist())


def _is_assistant(branch: RenderedTokens) -> NDArray[np.bool_]:
    """By message index; the last entry is that of tokens of no message."""
    return np.array([*(role == _ASSISTANT for role in branch.message_roles), False])
