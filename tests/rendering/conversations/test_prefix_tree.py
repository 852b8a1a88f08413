"""Prefixes that sequences share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.rendering.conversations.prefix_tree import NO_SEGMENT, common_prefix, share

# Few ids, so that much is shared; 255, 256 and 65,536 sort otherwise by little-endian bytes.
ids = st.sampled_from([0, 1, 255, 256, 65_536, 2**31 - 1])
samples = st.lists(st.lists(ids, max_size=8), max_size=12)


def arrays(sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [np.array(sequence, np.int32) for sequence in sequences]


def beginnings(sequences: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    """The nodes of a trie without its root, the obvious way."""
    return {tuple(each[:stop]) for each in sequences for stop in range(1, len(each) + 1)}


@given(samples)
def test_unique_tokens_are_the_distinct_beginnings(sequences: list[list[int]]) -> None:
    shared = share(arrays(sequences))
    assert shared.n_unique == len(beginnings(sequences))
    distinct = {tuple(one) for one in sequences}
    whole = [one for one in distinct if not any(other[: len(one)] == one != other for other in distinct)]
    assert shared.n_whole == sum(map(len, whole))


@given(samples)
def test_the_segments_of_a_sequence_give_it_back(sequences: list[list[int]]) -> None:
    shared = share(arrays(sequences))
    assert [shared.sequence_ids(i).tolist() for i in range(len(sequences))] == sequences
    assert shared.n_logical == sum(map(len, sequences))


@given(samples)
def test_sequences_end_in_the_same_segment_only_if_they_are_equal(sequences: list[list[int]]) -> None:
    leaves = share(arrays(sequences)).leaves.tolist()
    for one, leaf in zip(sequences, leaves, strict=True):
        assert [leaf == other for other in leaves] == [one == other for other in sequences]


@given(samples)
def test_a_segment_lies_behind_its_parent(sequences: list[list[int]]) -> None:
    shared = share(arrays(sequences))
    for segment, parent in enumerate(shared.parents.tolist()):
        assert NO_SEGMENT <= parent < segment
        assert shared.starts[segment] == (0 if parent == NO_SEGMENT else shared.stops[parent])
        assert shared.starts[segment] < shared.stops[segment]


@given(samples)
def test_a_unique_token_and_a_sequence_take_few_bytes(sequences: list[list[int]]) -> None:
    shared = share(arrays(sequences))
    assert shared.size_bytes <= 16 * shared.n_unique + 4 * len(sequences)


@given(samples)
def test_the_order_of_the_sequences_changes_no_number(sequences: list[list[int]]) -> None:
    there, back = share(arrays(sequences)), share(arrays(sequences[::-1]))
    assert (there.n_unique, there.n_logical, len(there.parents)) == (
        back.n_unique,
        back.n_logical,
        len(back.parents),
    )


def test_a_sequence_that_begins_another_ends_inside_it() -> None:
    shared = share(arrays([[1, 2, 3, 4], [1, 2]]))
    assert shared.segments_of(0) == [0, 1]
    assert shared.segments_of(1) == [0]
    assert [shared.segment_ids(segment).tolist() for segment in (0, 1)] == [[1, 2], [3, 4]]
    assert (shared.n_unique, shared.n_logical, shared.ratio) == (4, 6, 1.5)


@pytest.mark.parametrize("sequences", [[], [[]], [[], []]], ids=["none", "one empty", "two empty"])
def test_nothing_shares_nothing(sequences: list[list[int]]) -> None:
    shared = share(arrays(sequences))
    assert (shared.n_unique, shared.n_logical, shared.ratio) == (0, 0, 1.0)
    assert shared.leaves.tolist() == [NO_SEGMENT] * len(sequences)


@pytest.mark.parametrize(
    ("one", "other", "n"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2], [3, 2], 0)],
)
def test_common_prefix(one: list[int], other: list[int], n: int) -> None:
    assert common_prefix(*arrays([one, other])) == n
