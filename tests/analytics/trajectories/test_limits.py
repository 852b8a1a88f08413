"""Where trajectories stop under limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.trajectories.counts import InputOutputCounts
from tokscore.analytics.trajectories.limits import LimitName, Stop, TrajectoryLimits, first_stop
from tokscore.dataset.choices import LimitCount
from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace, linear


def node(parent: int, n_input: int, n_output: int) -> Node:
    mask = np.repeat(np.array([0, 1], np.int8), [n_input, n_output])
    tokens = NodeTokens(np.zeros(len(mask), np.int32), mask)
    return Node(parent, ({"role": "assistant" if n_output else "user"},), n_output > 0, tokens)


TWO_TURNS = Trace(linear([node(-1, 4, 0), node(-1, 1, 3), node(-1, 2, 0), node(-1, 1, 5)]))
# Two answers to one question; the second branch goes on.
TWO_BRANCHES = Trace([node(-1, 10, 0), node(0, 0, 2), node(0, 0, 3), node(2, 1, 0), node(3, 0, 4)])


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (TrajectoryLimits(max_turns=1), Stop(1, 1, "max_turns", InputOutputCounts(5, 3, 8))),
        (TrajectoryLimits(max_turns=2), Stop(2, 3, "max_turns", InputOutputCounts(8, 8, 16))),
        (TrajectoryLimits(max_turns=3), None),
        (TrajectoryLimits(input=5), Stop(1, 1, "input", InputOutputCounts(5, 3, 8))),
        (TrajectoryLimits(input=6), Stop(2, 3, "input", InputOutputCounts(8, 8, 16))),
        (TrajectoryLimits(output=8), Stop(2, 3, "output", InputOutputCounts(8, 8, 16))),
        (TrajectoryLimits(total=16), Stop(2, 3, "total", InputOutputCounts(8, 8, 16))),
        (TrajectoryLimits(total=17), None),
        (TrajectoryLimits(), None),
    ],
)
@pytest.mark.parametrize("count", list(LimitCount))
def test_a_limit_stops_the_turn_that_reaches_it(
    limits: TrajectoryLimits, stop: Stop | None, count: LimitCount
) -> None:
    assert first_stop(TWO_TURNS, limits, count) == stop


def test_input_behind_the_last_turn_reaches_no_limit() -> None:
    trace = Trace(linear([*TWO_TURNS.nodes, node(-1, 100, 0)]))
    assert first_stop(trace, TrajectoryLimits(input=9, total=17)) is None


def test_of_limits_reached_in_one_turn_the_first_is_named() -> None:
    found = first_stop(TWO_TURNS, TrajectoryLimits(max_turns=2, input=8, output=8, total=16))
    assert found is not None
    assert found.limit == "max_turns"


def test_a_later_limit_stops_an_earlier_turn() -> None:
    found = first_stop(TWO_TURNS, TrajectoryLimits(max_turns=2, input=100, total=8))
    assert found is not None
    assert (found.turn, found.limit) == (1, "total")


@pytest.mark.parametrize(
    ("max_turns", "unique", "branches"),
    [(1, (10, 2, 12), (10, 2, 12)), (2, (10, 5, 15), (20, 5, 25)), (3, (11, 9, 20), (21, 9, 30))],
)
def test_a_shared_prefix_counts_once_or_once_a_branch(
    max_turns: int, unique: InputOutputCounts, branches: InputOutputCounts
) -> None:
    for count, expected in ((LimitCount.UNIQUE, unique), (LimitCount.BRANCHES, branches)):
        found = first_stop(TWO_BRANCHES, TrajectoryLimits(max_turns=max_turns), count)
        assert found is not None
        assert found.counts == expected


def test_older_counting_stops_earlier() -> None:
    limits = TrajectoryLimits(total=20)
    assert [first_stop(TWO_BRANCHES, limits, count).turn for count in LimitCount] == [3, 2]


@pytest.mark.parametrize("limits", [{"total": 0}, {"max_turns": -1}])
def test_a_limit_below_one_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"expected a whole number from 1 on"):
        TrajectoryLimits(**limits)


def test_tokens_that_cannot_be_counted_are_refused() -> None:
    trace = Trace(
        linear([Node(-1, ({"role": role},), role == "assistant") for role in ("user", "assistant")])
    )
    with pytest.raises(ConversationError, match="of which neither token ids nor a usage say"):
        first_stop(trace, TrajectoryLimits(max_turns=1, output=1))


def test_turns_are_counted_without_tokens() -> None:
    roles = ("user", "assistant", "user", "assistant")
    trace = Trace(linear([Node(-1, ({"role": role},), role == "assistant") for role in roles]))
    assert first_stop(trace, TrajectoryLimits(max_turns=2)) == Stop(2, 3, LimitName.MAX_TURNS, None)
    assert first_stop(trace, TrajectoryLimits(max_turns=3)) is None


@st.composite
def trees(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 10))
    numbers = st.integers(0, 5)
    return Trace([node(draw(st.integers(NO_PARENT, i - 1)), draw(numbers), draw(numbers)) for i in range(n)])


def counts_of(nodes: Sequence[Node]) -> tuple[int, int, int]:
    n_output = sum(int(each.tokens.sampled_mask.sum()) for each in nodes)
    total = sum(len(each.tokens.token_ids) for each in nodes)
    return total - n_output, n_output, total


def slow_stop(trace: Trace, limits: TrajectoryLimits, count: LimitCount) -> tuple[object, ...] | None:
    """Counts all nodes so far, or all branches that they make, anew at every turn."""
    turn = 0
    for i, each in enumerate(trace.nodes):
        if not each.is_sampled:
            continue
        turn += 1
        so_far = Trace(trace.nodes[: i + 1])
        found = so_far.nodes
        if count is LimitCount.BRANCHES:
            found = [so_far.nodes[at] for branch in so_far.branches for at in branch]
        counts = counts_of(found)
        for name, value in zip(("max_turns", "input", "output", "total"), (turn, *counts), strict=True):
            limit = getattr(limits, name)
            if limit is not None and value >= limit:
                return turn, i, name, counts
    return None


limit_values = st.none() | st.integers(1, 40)


@pytest.mark.parametrize("count", list(LimitCount))
@given(
    trace=trees(), limits=st.builds(TrajectoryLimits, limit_values, limit_values, limit_values, limit_values)
)
def test_the_stop_is_that_of_counting_anew_at_every_turn(
    trace: Trace, limits: TrajectoryLimits, count: LimitCount
) -> None:
    assert first_stop(trace, limits, count) == slow_stop(trace, limits, count)
