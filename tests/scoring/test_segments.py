from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokscore.dataset.errors import EngineError
from tokscore.rendering.conversations.prefix_tree import share
from tokscore.scoring import SequenceScores, TokenSequence
from tokscore.scoring.sharing.dedupe import share_sequences
from tokscore.scoring.sharing.segments import SegmentPlan, token_counts

RECORDS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=9), min_size=1, max_size=12)
NAMES = ("logprobs", "ranks", "top_ids", "top_logprobs", "entropy", "at_ids", "at_logprobs")


def scores_of(sequence: TokenSequence) -> SequenceScores:
    """A row tells the whole beginning that it depends on, and the id; the list knows the beginning alone."""
    at, ids = sequence.positions().tolist(), sequence.targets().tolist()
    begins = [tuple(sequence.token_ids[: stop + 1].tolist()) for stop in at]
    rows = np.array(
        [abs(hash((*one, each))) % 10_007 for one, each in zip(begins, ids, strict=True)], np.int32
    )
    lists = np.array([abs(hash(one)) % 10_007 for one in begins], np.int32)
    floats = -lists.astype(np.float32)
    at_ids, at_logprobs = sequence.at_rows(), None
    if at_ids is not None:
        at_logprobs = floats[:, None] - at_ids.astype(np.float32) / 8
        at_logprobs[at_ids < 0] = -np.inf
    return SequenceScores(
        -rows.astype(np.float32), rows, lists[:, None], floats[:, None], floats, at_ids, at_logprobs
    )


def drawn(records: list[list[int]], data: st.DataObject) -> list[TokenSequence]:
    masks = [
        data.draw(st.none() | st.lists(st.booleans(), min_size=len(r) - 1, max_size=len(r) - 1))
        for r in records
    ]
    # Also of equal tokens, the given ids need not be equal.
    width = data.draw(st.none() | st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    return [
        TokenSequence(
            key,
            np.array(ids, np.int32),
            None if mask is None else np.array(mask, np.bool_),
            at_ids=None if width is None else given_ids(rng, len(ids) - 1, width),
        )
        for key, (ids, mask) in enumerate(zip(records, masks, strict=True))
    ]


def given_ids(rng: np.random.Generator, n_rows: int, width: int) -> NDArray[np.int32]:
    ids = np.array([rng.permutation(6)[:width] for _ in range(n_rows)], np.int32).reshape(n_rows, width)
    ids[rng.random(ids.shape) < 0.2] = -1
    return ids


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.data())
def test_the_rows_of_a_tree_are_those_of_each_sequence_alone(
    records: list[list[int]], data: st.DataObject
) -> None:
    sequences = drawn(records, data)
    [group] = share_sequences(sequences)
    plan = SegmentPlan([each.sequence for each in group])
    members = {each.sequence.key: each for each in group}
    found: dict[int, SequenceScores] = {}
    for at in data.draw(st.permutations(range(len(plan.sequences)))):
        sequence = plan.sequences[at]
        for key, rows in plan.add(sequence.key, scores_of(sequence)):
            found |= {each.key: members[key].rows_of(each, rows) for each in members[key].members}
    assert sorted(found) == list(range(len(sequences)))
    for sequence in sequences:
        alone = scores_of(sequence)
        for name in NAMES:
            np.testing.assert_array_equal(getattr(found[sequence.key], name), getattr(alone, name))
    assert not plan._made
    assert not plan._whole


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_a_branch_has_no_row_before_its_branch_point_and_every_segment_is_computed_once(
    records: list[list[int]], data: st.DataObject
) -> None:
    [group] = share_sequences(drawn(records, data))
    plan = SegmentPlan([each.sequence for each in group])
    seen: dict[int, TokenSequence] = {}
    for sequence in plan.sequences:
        assert (sequence.trunk is None) == (sequence.n_shared == 0)
        if sequence.trunk is not None:
            trunk = seen[sequence.trunk]
            np.testing.assert_array_equal(
                sequence.token_ids[: sequence.n_shared], trunk.token_ids[: sequence.n_shared]
            )
            assert trunk.n_shared < sequence.n_shared <= trunk.n_for_branches
        assert (sequence.positions() >= sequence.n_shared).all() or not sequence.n_rows
        assert len(sequence.targets()) == len(sequence.positions()) == sequence.n_rows
        seen[sequence.key] = sequence
    n_computed = sum(len(each.token_ids) - each.n_shared for each in plan.sequences)
    ids = [np.array(record, np.int32) for record in records]
    assert n_computed == share(ids).n_unique == token_counts(ids).n_unique
    assert token_counts(ids).n_whole == sum(len(each.sequence.token_ids) for each in group)
    # No row is asked for twice.
    asked = [
        (*each.token_ids[: at + 1].tolist(), target)
        for each in plan.sequences
        for at, target in zip(each.positions().tolist(), each.targets().tolist(), strict=True)
    ]
    assert len(set(asked)) == len(asked)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.data())
def test_what_needs_a_failed_trunk_is_named_once(records: list[list[int]], data: st.DataObject) -> None:
    [group] = share_sequences(drawn(records, data))
    plan = SegmentPlan([each.sequence for each in group])
    failed = data.draw(st.sampled_from(plan.sequences)).key
    named, complete = [], []
    for sequence in data.draw(st.permutations(plan.sequences)):
        if sequence.key == failed:
            named += [failed, *(each.key for each in plan.fail(failed))]
        else:
            complete += [key for key, _ in plan.add(sequence.key, scores_of(sequence))]
    assert sorted(named + complete) == sorted(each.key for each in plan.sequences)


def test_rows_of_a_trunk_of_another_number_are_refused() -> None:
    records = [[1, 2, 3, 4, 5], [1, 2, 9]]
    plan = SegmentPlan([TokenSequence(key, np.array(ids, np.int32)) for key, ids in enumerate(records)])
    scores = scores_of(TokenSequence(0, np.arange(5, dtype=np.int32)))
    with pytest.raises(EngineError, match="returned 4 logprobs for 5 tokens to score"):
        list(plan.add(0, scores))


def test_rows_of_a_trunk_at_other_ids_are_refused() -> None:
    at_ids = np.zeros((4, 1), np.int32)
    records = [[1, 2, 3, 4, 5], [1, 2, 9]]
    plan = SegmentPlan(
        [
            TokenSequence(key, np.array(ids, np.int32), at_ids=at_ids[: len(ids) - 1])
            for key, ids in enumerate(records)
        ]
    )
    scores = scores_of(plan.sequences[0])
    for other in (scores.at(None), replace(scores, at_ids=np.ones_like(scores.at_ids))):
        with pytest.raises(EngineError, match="no logprobs at the ids that were given, or at others"):
            list(plan.add(0, other))
