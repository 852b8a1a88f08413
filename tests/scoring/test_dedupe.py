from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokscore.scoring import SequenceScores, TokenSequence
from tokscore.scoring.sharing.dedupe import share_sequences

SEQUENCES = st.lists(st.lists(st.integers(0, 300), min_size=2, max_size=5), max_size=12)


def scores_of(sequence: TokenSequence) -> SequenceScores:
    """A row tells the whole beginning that it depends on, so that a row of another sequence shows."""
    at = (
        np.arange(1, len(sequence.token_ids))
        if sequence.wanted is None
        else np.flatnonzero(sequence.wanted) + 1
    )
    beginnings = [hash(tuple(sequence.token_ids[: stop + 1].tolist())) for stop in at]
    values = np.array([abs(value) % 10_007 for value in beginnings], np.int32)
    floats = -values.astype(np.float32)
    return SequenceScores(floats, values, values[:, None], floats[:, None], floats)


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, st.data())
def test_shared_rows_are_those_of_the_sequence_scored_alone(
    records: list[list[int]], data: st.DataObject
) -> None:
    sequences = [
        TokenSequence(
            key,
            np.array(ids, np.int32),
            data.draw(
                st.none()
                | st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1).map(
                    lambda mask: np.array(mask, np.bool_)
                )
            ),
        )
        for key, ids in enumerate(records)
    ]
    found = {}
    for shared in chain.from_iterable(share_sequences(sequences)):
        scores = scores_of(shared.sequence)
        found |= {member.key: shared.rows_of(member, scores) for member in shared.members}
    assert sorted(found) == list(range(len(sequences)))
    for sequence in sequences:
        alone = scores_of(sequence)
        for name in ("logprobs", "ranks", "top_ids", "top_logprobs", "entropy"):
            np.testing.assert_array_equal(getattr(found[sequence.key], name), getattr(alone, name))


@settings(max_examples=40, deadline=None)
@given(SEQUENCES)
def test_no_sequence_for_the_engine_begins_another(records: list[list[int]]) -> None:
    sequences = [TokenSequence(key, np.array(ids, np.int32)) for key, ids in enumerate(records)]
    kept = [
        tuple(shared.sequence.token_ids.tolist())
        for shared in chain.from_iterable(share_sequences(sequences))
    ]
    for i, one in enumerate(kept):
        assert not any(one == other[: len(one)] for j, other in enumerate(kept) if i != j)


def test_short_sequences_take_no_rows_from_ones_with_other_positions() -> None:
    ids = np.arange(9, dtype=np.int32)
    sequences = [TokenSequence(key, ids[:stop]) for key, stop in enumerate((9, 3, 8, 5))]

    def holders(switch_length: int | None) -> list[tuple[int, list[int]]]:
        found = chain.from_iterable(share_sequences(sequences, switch_length))
        return sorted((each.sequence.key, sorted(member.key for member in each.members)) for each in found)

    assert holders(None) == [(0, [0, 1, 2, 3])]
    assert holders(5) == [(0, [0, 2]), (3, [1, 3])]
