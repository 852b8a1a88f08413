"""Token sequences as a compressed trie, in which every shared prefix is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_SEGMENT = -1


@dataclass(frozen=True, slots=True, eq=False)
class SharedTokens:
    """A compressed trie of token sequences.

    A segment is a run of ids that the same sequences have in common; it is kept as a slice of one of them, so
    that no ids are copied. A parent comes before its children. Every sequence ends where a segment ends, also
    one that is the beginning of another; equal sequences end in the same segment.

    Attributes:
        sequences: As they were given.
        parents: The segment before each, int32, `NO_SEGMENT` at the beginning; shape [segments].
        holders: Index of the sequence that each is a slice of, int32.
        starts: Where it starts in that sequence, int32.
        stops: One past its end there, int32.
        leaves: The segment in which each sequence ends, int32, `NO_SEGMENT` without ids; shape [sequences].
    """

    sequences: Sequence[NDArray[np.int32]]
    parents: NDArray[np.int32]
    holders: NDArray[np.int32]
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]
    leaves: NDArray[np.int32]

    @property
    def n_logical(self) -> int:
        """Tokens of all sequences."""
        return sum(map(len, self.sequences))

    @property
    def n_whole(self) -> int:
        """Tokens of the sequences that are neither equal to another nor its beginning."""
        is_inner = np.zeros(len(self.stops), np.bool_)
        is_inner[self.parents[self.parents != NO_SEGMENT]] = True
        return int(self.stops[~is_inner].sum(dtype=np.int64))

    @property
    def n_unique(self) -> int:
        """Tokens of all segments: so many distinct beginnings do the sequences have."""
        return int((self.stops - self.starts).sum(dtype=np.int64))

    @property
    def ratio(self) -> float:
        """Logical tokens for each unique one; 1 where nothing is shared, or where there are none."""
        n_unique = self.n_unique
        return self.n_logical / n_unique if n_unique else 1.0

    @property
    def size_bytes(self) -> int:
        """Memory of the tree, without the sequences themselves."""
        arrays = (self.parents, self.holders, self.starts, self.stops, self.leaves)
        return sum(array.nbytes for array in arrays)

    def segments_of(self, sequence: int) -> list[int]:
        """The segments of one sequence from its first token to its last."""
        path, at = [], int(self.leaves[sequence])
        while at != NO_SEGMENT:
            path.append(at)
            at = int(self.parents[at])
        return path[::-1]

    def segment_ids(self, segment: int) -> NDArray[np.int32]:
        """The ids of one segment, int32, shape [tokens]: a view."""
        holder = self.sequences[int(self.holders[segment])]
        return holder[int(self.starts[segment]) : int(self.stops[segment])]

    def sequence_ids(self, sequence: int) -> NDArray[np.int32]:
        """The ids of one sequence, put together from its segments; int32, shape [tokens]."""
        found = [self.segment_ids(segment) for segment in self.segments_of(sequence)]
        return np.concatenate(found) if found else np.zeros(0, np.int32)


def share(sequences: Sequence[NDArray[np.int32]]) -> SharedTokens:
    """The prefix tree of some sequences.

    The time is that of sorting the sequences; while it is made, 4 bytes a logical token are needed.

    Args:
        sequences: Token ids, int32, each of shape [tokens].
    """
    # In the byte order of big-endian numbers, neighbours have the longest common beginnings.
    keys = [sequence.astype(">u4").tobytes() for sequence in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    tree = _Tree()
    leaves = np.full(len(order), NO_SEGMENT, np.int32)
    for place, (before, at) in enumerate(zip([None, *order], order, strict=False)):
        if before is None:
            n_common = 0
        elif keys[before] == keys[at]:
            n_common = len(sequences[at])
        else:
            n_common = common_prefix(sequences[before], sequences[at])
        leaves[at] = tree.add(place, n_common, len(sequences[at]))
    return tree.finish(sequences, np.array(order, np.int32), leaves)


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many ids two sequences have in common from their beginning on."""
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


class _Tree:
    """Grows by sequences in sorted order.

    Only the path of the last sequence can still change: what leaves it is never shared again.
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._stops: list[int] = []
        self._places: list[int] = []  # of the first sequence, in sorted order, that holds the segment
        self._path: list[int] = []

    def add(self, place: int, n_common: int, length: int) -> int:
        """Add a sequence.

        Args:
            place: Its index in sorted order.
            n_common: Ids that it shares with the sequence before it.
            length: Its ids.

        Returns:
            The segment in which it ends, `NO_SEGMENT` without ids.
        """
        self._leave(n_common)
        if length > n_common:
            self._path.append(self._new(place, length))
        return self._path[-1] if self._path else NO_SEGMENT

    def _leave(self, n_common: int) -> None:
        """Take from the path what ends beyond `n_common`; a segment ends there afterwards."""
        path, stops = self._path, self._stops
        while path and stops[path[-1]] > n_common:
            left = path.pop()
            if n_common and (not path or stops[path[-1]] < n_common):
                path.append(self._new(self._places[left], n_common))
            self._parents[left] = path[-1] if path else NO_SEGMENT

    def _new(self, place: int, stop: int) -> int:
        self._parents.append(NO_SEGMENT)
        self._stops.append(stop)
        self._places.append(place)
        return len(self._stops) - 1

    def finish(
        self, sequences: Sequence[NDArray[np.int32]], order: NDArray[np.int32], leaves: NDArray[np.int32]
    ) -> SharedTokens:
        """The tree, its segments from the beginning of the first sequence in sorted order on."""
        self._leave(0)
        places, stops = _array(self._places), _array(self._stops)
        ranked = np.lexsort((stops, places))
        numbers = np.full(len(ranked) + 1, NO_SEGMENT, np.int32)  # the last is that of NO_SEGMENT
        numbers[ranked] = np.arange(len(ranked), dtype=np.int32)
        parents = _array(self._parents)
        starts = np.where(parents == NO_SEGMENT, np.int32(0), np.append(stops, np.int32(0))[parents])
        return SharedTokens(
            sequences=sequences,
            parents=numbers[parents[ranked]],
            holders=order[places[ranked]],
            starts=starts[ranked],
            stops=stops[ranked],
            leaves=numbers[leaves],
        )


def _array(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)
