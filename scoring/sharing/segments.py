"""Sequences that begin alike as trees: what they have in common is computed once, and each row once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import EngineError
from tokscore.rendering.conversations.prefix_tree import common_prefix
from tokscore.scoring.engines.contract import OtherIds, SequenceScores, TokenSequence
from tokscore.scoring.given.ids import united

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]

NO_TRUNK = -1
# Less is not worth what it costs to keep and to find again.
LEAST_SAVING = 0.05


class TokenCounts(NamedTuple):
    """Tokens of some sequences.

    Attributes:
        n_logical: Of all of them.
        n_whole: Of those that are neither equal to another nor its beginning.
        n_unique: Of all segments: so many tokens have to be computed.
    """

    n_logical: int
    n_whole: int
    n_unique: int

    @property
    def are_worth_sharing(self) -> bool:
        """Whether what sequences have in common is enough to be kept and found again."""
        return self.n_whole > 0 and 1 - self.n_unique / self.n_whole > LEAST_SAVING

    def plus(self, other: TokenCounts) -> TokenCounts:
        """The counts of both together."""
        return TokenCounts(*(one + another for one, another in zip(self, other, strict=True)))


class Branch(NamedTuple):
    """Where a sequence leaves an earlier one.

    Attributes:
        trunk: Index of the sequence that computes the token before the branch point, `NO_TRUNK` for none.
        n_shared: Tokens in common with it, all of which are computed before.
    """

    trunk: int
    n_shared: int


def branches_of(sequences: Sequence[NDArray[np.int32]]) -> tuple[list[int], list[Branch]]:
    """An order in which trunks come first, and where each sequence leaves what was computed before it.

    Args:
        sequences: Token ids, int32, none of which begins another.

    Returns:
        Indices in that order, and a branch for each place of it, whose trunk is a place as well.
    """
    # Big-endian, so that the order of the bytes is that of the ids and neighbours have most in common.
    texts = [sequence.astype(">u4").tobytes() for sequence in sequences]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    branches: list[Branch] = []
    path: list[int] = []  # places of the sequences that computed the last one's tokens
    for place, at in enumerate(order):
        n_shared = common_prefix(sequences[order[place - 1]], sequences[at]) if place else 0
        while path and branches[path[-1]].n_shared >= n_shared:
            path.pop()
        branches.append(Branch(path[-1], n_shared) if path else Branch(NO_TRUNK, 0))
        path.append(place)
    return order, branches


def whole_sequences(n_sequences: int) -> tuple[list[int], list[Branch]]:
    """The order and branches of sequences that share nothing."""
    return list(range(n_sequences)), [Branch(NO_TRUNK, 0)] * n_sequences


def token_counts(sequences: Sequence[NDArray[np.int32]]) -> TokenCounts:
    """Logical, whole and unique tokens of sequences of int32 ids."""
    ordered = sorted(sequences, key=lambda sequence: sequence.astype(">u4").tobytes())
    lengths = [len(sequence) for sequence in ordered]
    common = [common_prefix(one, other) for one, other in pairwise(ordered)]
    n_logical = sum(lengths)
    # What begins its neighbour, or is equal to it, is no sequence of its own.
    n_inner = sum(n for n, n_common in zip(lengths, common, strict=False) if n == n_common)
    return TokenCounts(n_logical, n_logical - n_inner, n_logical - sum(common))


class SegmentPlan:
    """What an engine is asked for so that each row of some sequences is made once.

    A row about a shared token is the row of the trunk. The first row of a branch is about an id that follows
    the trunk's tokens: the trunk is asked for it, so that no row of a branch lies before its branch point.

    Attributes:
        sequences: For the engine, trunks first, with the keys of those that were given.
    """

    def __init__(self, sequences: Sequence[TokenSequence], *, shares: bool = True) -> None:
        """Plan them.

        Args:
            sequences: None of which begins another.
            shares: Whether the engine keeps what it computes; otherwise they come as they are.
        """
        ids = [sequence.token_ids for sequence in sequences]
        order, self._branches = branches_of(ids) if shares else whole_sequences(len(ids))
        self._given = [sequences[at] for at in order]
        self._place = {sequence.key: place for place, sequence in enumerate(self._given)}
        self._branches_of: dict[int, list[int]] = defaultdict(list)
        for place, branch in enumerate(self._branches):
            if branch.trunk != NO_TRUNK:
                self._branches_of[branch.trunk].append(place)
        self._wanted = self._needed()
        self._at_ids = self._needed_ids()
        self.sequences = [self._for_engine(place) for place in range(len(order))]
        self._made: dict[int, SequenceScores] = {}
        self._whole: dict[int, SequenceScores] = {}
        self._is_done: set[int] = set()
        self._n_open = {place: len(found) for place, found in self._branches_of.items()}

    def _needed(self) -> list[Bools]:
        """The rows of each that are its own or a branch's, bool [tokens-1]."""
        wanted = [
            np.ones(len(each.token_ids) - 1, np.bool_) if each.wanted is None else each.wanted.copy()
            for each in self._given
        ]
        for place in reversed(range(len(wanted))):
            trunk, n_shared = self._branches[place]
            if trunk != NO_TRUNK:
                wanted[trunk][: n_shared - 1] |= wanted[place][: n_shared - 1]
        return wanted

    def _needed_ids(self) -> list[NDArray[np.int32] | None]:
        """The given ids of each that are its own or a branch's, int32 [tokens-1, width]."""
        needed = [each.at_ids for each in self._given]
        for place in reversed(range(len(needed))):
            trunk, n_shared = self._branches[place]
            mine = needed[place]
            if trunk != NO_TRUNK and mine is not None:
                theirs = needed[trunk]
                if theirs is None:
                    theirs = np.empty((len(self._given[trunk].token_ids) - 1, 0), np.int32)
                # The row about the first token behind the branch point is made with the trunk's.
                needed[trunk] = united(theirs, mine[:n_shared])
        return needed

    def _for_engine(self, place: int) -> TokenSequence:
        given, (trunk, n_shared) = self._given[place], self._branches[place]
        branches = self._branches_of.get(place, [])
        followed = [each for each in branches if self._wants_first(each)]
        starts = np.array([self._branches[each].n_shared for each in followed], np.int64)
        by_position = np.argsort(starts, kind="stable")
        others = None
        if followed:
            ids = [self._given[each].token_ids[self._branches[each].n_shared] for each in followed]
            others = OtherIds(starts[by_position] - 1, np.array(ids, np.int32)[by_position])
        wanted = self._wanted[place].copy()
        wanted[:n_shared] = False
        return given._replace(
            wanted=None if wanted.all() else wanted,
            others=others,
            trunk=None if trunk == NO_TRUNK else self._given[trunk].key,
            n_shared=n_shared,
            n_for_branches=max((self._branches[each].n_shared for each in branches), default=0),
            at_ids=self._at_ids[place],
        )

    def _wants_first(self, place: int) -> bool:
        """Whether the row about the first token behind the branch point is wanted."""
        return bool(self._wanted[place][self._branches[place].n_shared - 1])

    def add(self, key: int, scores: SequenceScores) -> Iterator[tuple[int, SequenceScores]]:
        """Take what the engine made; gives key and rows of the sequences that are complete with it.

        Args:
            key: Of a sequence.
            scores: Of it.

        Raises:
            EngineError: They have another number of rows or other given ids than asked for, and others need
                them.
        """
        place = self._place[key]
        n_rows = self.sequences[place].n_rows
        is_alone = self._branches[place].trunk == NO_TRUNK and place not in self._branches_of
        if is_alone:
            # As it came: its check says what is wrong with it.
            yield key, scores
            return
        for name, column in _columns(scores).items():
            if len(column) != n_rows:
                raise EngineError(
                    f"the engine returned {len(column)} {name} for {n_rows} tokens to score. "
                    "Nothing was written for this part."
                )
        at_ids = self.sequences[place].at_rows()
        if at_ids is not None and not (scores.at_ids is not None and np.array_equal(scores.at_ids, at_ids)):
            raise EngineError(
                "the engine returned no logprobs at the ids that were given, or at others. "
                "Nothing was written for this part."
            )
        if place not in self._is_done:
            self._made[place] = scores
            yield from self._complete(place)

    def fail(self, key: int) -> list[TokenSequence]:
        """Give up a sequence; gives those that needed its rows and are not complete, as they came."""
        lost: list[TokenSequence] = []
        waiting = [self._place[key]]
        while waiting:
            place = waiting.pop()
            if place in self._is_done:
                continue
            self._is_done.add(place)
            lost.append(self._given[place])
            waiting += self._branches_of.get(place, [])
        return lost[1:]

    def _complete(self, place: int) -> Iterator[tuple[int, SequenceScores]]:
        waiting = [place]
        while waiting:
            place = waiting.pop()
            trunk = self._branches[place].trunk
            if place not in self._made or (trunk != NO_TRUNK and trunk not in self._whole):
                continue
            rows = self._whole[place] = self._rows(place)
            self._is_done.add(place)
            yield self._given[place].key, self._own_rows(place, rows)
            waiting += self._branches_of.get(place, [])
            for each in (place, trunk):
                if each == trunk:
                    self._n_open[each] = self._n_open.get(each, 0) - 1
                # What nobody needs any more.
                if self._n_open.get(each, 0) <= 0:
                    self._whole.pop(each, None)
                    self._made.pop(each, None)

    def _rows(self, place: int) -> SequenceScores:
        """Every needed row of a sequence, from its first token on."""
        made, sequence = self._made[place], self.sequences[place]
        parts = [made]
        if sequence.others is not None:
            # Branches differ from their trunk in the token behind the branch point.
            parts = [_taken(made, sequence.targets() == sequence.token_ids[1:][sequence.positions()])]
        trunk, n_shared = self._branches[place]
        if trunk != NO_TRUNK:
            at_ids = self._at_ids[place]

            def of_trunk(scores: SequenceScores, rows: Any, positions: Any) -> SequenceScores:  # Any: indices
                return _taken(scores, rows).at(None if at_ids is None else at_ids[positions])

            if self._wants_first(place):
                parts.insert(0, of_trunk(self._made[trunk], [self._row_in_trunk(place)], [n_shared - 1]))
            positions = np.flatnonzero(self._wanted[place][: n_shared - 1])
            row_of = np.cumsum(self._wanted[trunk]) - 1
            parts.insert(0, of_trunk(self._whole[trunk], row_of[positions], positions))
        return _joined(parts)

    def _row_in_trunk(self, place: int) -> int:
        """The row of the trunk that is about the first token behind the branch point."""
        trunk, n_shared = self._branches[place]
        sequence = self.sequences[trunk]
        first = int(self._given[place].token_ids[n_shared])
        positions, targets = sequence.positions(), sequence.targets()
        start, stop = np.searchsorted(positions, (n_shared - 1, n_shared))
        return int(start + np.flatnonzero(targets[start:stop] == first)[0])

    def _own_rows(self, place: int, rows: SequenceScores) -> SequenceScores:
        given = self._given[place]
        rows = rows if given.wanted is None else _taken(rows, given.wanted[self._wanted[place]])
        return rows.at(given.at_rows())


def _columns(scores: SequenceScores) -> dict[str, NDArray[Any]]:  # Any: integers or floats
    found = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return {name: column for name, column in found.items() if column is not None}


def _taken(scores: SequenceScores, rows: Any) -> SequenceScores:  # Any: whatever indexes an array
    columns: dict[str, Any] = {field.name: None for field in fields(scores)}
    return SequenceScores(**columns | {name: column[rows] for name, column in _columns(scores).items()})


def _joined(parts: Sequence[SequenceScores]) -> SequenceScores:
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}  # Any: arrays, None where the engine does not give them
    for field in fields(SequenceScores):
        found = [getattr(part, field.name) for part in parts]
        columns[field.name] = None if any(column is None for column in found) else np.concatenate(found)
    return SequenceScores(**columns)
