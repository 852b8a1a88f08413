"""Sequences that are equal, or the beginning of another, are scored once and share the rows."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.scoring.engines.contract import SequenceScores, TokenSequence
from tokscore.scoring.given.ids import united

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Sequences are compared with each other inside windows of this many tokens.
WINDOW_TOKENS = 262_144


class SharedSequence(NamedTuple):
    """One sequence for the engine and those that take their rows from it.

    Attributes:
        sequence: Wants what any of them wants.
        members: The sequences as they came, the longest among them.
    """

    sequence: TokenSequence
    members: tuple[TokenSequence, ...]

    def rows_of(self, member: TokenSequence, scores: SequenceScores) -> SequenceScores:
        """The rows of one member among those of the whole.

        A result of another length or at other given ids is returned as it is: it breaks the contract, and
        its check says how.
        """
        # Any: arrays, None where the engine does not give them
        columns: dict[str, Any] = {field.name: getattr(scores, field.name) for field in fields(scores)}
        if any(column is not None and len(column) != self.sequence.n_rows for column in columns.values()):
            return scores
        at_ids = self.sequence.at_rows()
        if at_ids is not None and not (scores.at_ids is not None and np.array_equal(scores.at_ids, at_ids)):
            return scores
        if member.n_rows == self.sequence.n_rows:
            return scores.at(member.at_rows())
        at = self._rows_at(member)
        rows: dict[str, Any] = {name: column[at] for name, column in columns.items() if column is not None}
        return replace(scores, **rows).at(member.at_rows())

    def _rows_at(self, member: TokenSequence) -> NDArray[np.intp] | slice:
        if self.sequence.wanted is None:
            return slice(0, member.n_rows) if member.wanted is None else np.flatnonzero(member.wanted)
        wanted = np.ones(len(member.token_ids) - 1, np.bool_) if member.wanted is None else member.wanted
        row_of: NDArray[np.intp] = np.cumsum(self.sequence.wanted) - 1
        return row_of[: len(wanted)][wanted]


def share_sequences(
    sequences: Sequence[TokenSequence], switch_length: int | None = None
) -> list[list[SharedSequence]]:
    """The fewest sequences that hold the rows of all, in the order of the longest of each.

    The rows of a sequence do not depend on what follows it, so that a beginning needs no pass of its own.

    Args:
        sequences: Whose rows are wanted.
        switch_length: Tokens of longer sequences have other positions in the model.

    Returns:
        Groups that have nothing to do with each other: up to that length, and longer ones.
    """
    return [_share(group) for group in by_length(sequences, switch_length)]


def by_length(
    sequences: Sequence[TokenSequence], switch_length: int | None
) -> tuple[list[TokenSequence], ...]:
    """The sequences in the groups in which they can have rows in common."""
    if switch_length is None:
        return (list(sequences),)
    is_long = [len(sequence.token_ids) > switch_length for sequence in sequences]
    return (
        [each for each, long in zip(sequences, is_long, strict=True) if not long],
        [each for each, long in zip(sequences, is_long, strict=True) if long],
    )


def _share(sequences: Sequence[TokenSequence]) -> list[SharedSequence]:
    # Big-endian, so that the order of the bytes is that of the ids.
    texts = [sequence.token_ids.astype(">i4").tobytes() for sequence in sequences]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    members: dict[int, list[TokenSequence]] = {}
    holder = -1
    for place in range(len(order) - 1, -1, -1):
        this = order[place]
        # Whatever begins with this sequence comes right behind it.
        if place + 1 == len(order) or not texts[order[place + 1]].startswith(texts[this]):
            holder = this
        members.setdefault(holder, []).append(sequences[this])
    return [
        SharedSequence(_union(sequences[holder], members[holder]), tuple(members[holder]))
        for holder in sorted(members)
    ]


def _union(holder: TokenSequence, members: Sequence[TokenSequence]) -> TokenSequence:
    """The holder, wanting what any member wants."""
    if len(members) == 1:
        return holder
    if holder.at_ids is not None:
        holder = holder._replace(at_ids=_given_ids(holder.at_ids, members))
    if holder.wanted is None:
        return holder
    wanted = holder.wanted.copy()
    for member in members:
        wanted[: len(member.token_ids) - 1] |= True if member.wanted is None else member.wanted
    return holder._replace(wanted=wanted)


def _given_ids(at_ids: NDArray[np.int32], members: Sequence[TokenSequence]) -> NDArray[np.int32]:
    """The holder's given ids, and members' that it lacks: lists at equal tokens may differ by noise."""
    for member in members:
        if member.at_ids is not None:
            at_ids = united(at_ids, member.at_ids)
    return at_ids
