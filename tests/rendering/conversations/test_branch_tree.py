"""Branches with equal beginnings: tokens once, turns and branches as often as they were made."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tokscore.analytics.trajectories.counts import branch_counts, trace_counts
from tokscore.analytics.trajectories.limits import TrajectoryLimits, first_stop
from tokscore.dataset.choices import LimitCount
from tokscore.rendering.conversations.branch_tree import merged
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace, joined_logprobs


def row(*ids: int) -> list[tuple[list[int], bool]]:
    """A prompt of two ids, an answer of two, and, if there are more, one id of a user and another answer."""
    found = [(list(ids[:2]), False), (list(ids[2:4]), True)]
    return found if len(ids) == 4 else [*found, (list(ids[4:5]), False), (list(ids[5:]), True)]


def rows(*branches: list[tuple[list[int], bool]]) -> Trace:
    """Whole branches one behind the other, as formats list them that know no tree."""
    nodes: list[Node] = []
    for branch in branches:
        for i, (ids, is_sampled) in enumerate(branch):
            tokens = NodeTokens(np.array(ids, np.int32), np.full(len(ids), is_sampled, np.int8))
            nodes.append(Node(len(nodes) - 1 if i else NO_PARENT, (), is_sampled, tokens))
    return Trace(nodes)


@pytest.mark.parametrize(
    ("branches", "n_turns", "total"),
    [
        ([row(1, 2, 27, 2)] * 3, 3, 4),
        ([row(1, 2, 27, 2), row(1, 2, 27, 2), row(1, 2, 27, 2, 9, 27, 5)], 4, 7),
        ([row(1, 2, 27, 2, 9, 27, 5), row(1, 2, 27, 2)], 3, 7),
        ([row(1, 2, 3, 4, 9, 27, 5), row(1, 2, 3, 4, 9, 28, 5)], 3, 9),
        ([row(1, 2, 27, 28), row(1, 2, 27, 29)], 2, 5),
        ([row(1, 2, 3, 4), row(5, 2, 3, 4)], 2, 8),
    ],
)
def test_equal_beginnings_count_once_and_every_sample_is_a_turn(
    branches: list[list[tuple[list[int], bool]]], n_turns: int, total: int
) -> None:
    trace = merged(rows(*branches))
    lengths = [sum(len(ids) for ids, _ in branch) for branch in branches]
    assert [counts.total for counts in branch_counts(trace)] == lengths
    assert trace_counts(trace).total == total
    assert sum(node.is_sampled for node in trace.nodes) == n_turns


@pytest.mark.parametrize(
    "limit", [TrajectoryLimits(max_turns=2), TrajectoryLimits(total=8), TrajectoryLimits(output=4)]
)
def test_equal_samples_reach_limits_that_count_by_branch(limit: TrajectoryLimits) -> None:
    stop = first_stop(merged(rows(*[row(1, 2, 27, 2)] * 3)), limit, LimitCount.BRANCHES)
    assert stop is not None
    assert (stop.turn, stop.counts) == (2, (4, 4, 8))


def test_a_tree_that_shares_nodes_keeps_their_order() -> None:
    trunk = rows(row(1, 2, 3, 4)).nodes
    other = Node(0, (), True, NodeTokens(np.array([5, 6], np.int32), np.ones(2, np.int8)))
    trace = Trace([*trunk, other])
    assert merged(trace).nodes == trace.nodes


def test_an_answer_of_which_nothing_was_generated_is_no_turn() -> None:
    trace = rows([([1], False), ([], True)])
    assert not any(node.is_sampled for node in merged(trace).nodes)


def test_logprobs_stay_with_their_tokens() -> None:
    first, second = row(1, 2, 27, 28), row(1, 2, 27, 29)
    nodes = list(rows(first, second).nodes)
    for i, values in ((1, [-1.0, -2.0]), (3, [-3.0, -4.0])):
        tokens = nodes[i].tokens
        assert tokens is not None
        nodes[i] = nodes[i]._replace(tokens=tokens._replace(logprobs=np.array(values, np.float32)))
    trace = merged(Trace(nodes, metadata="{}"))
    assert trace.metadata == "{}"
    joined = [
        joined_logprobs(
            [tokens.logprobs for i in path if (tokens := trace.nodes[i].tokens) is not None],
            [len(tokens.token_ids) for i in path if (tokens := trace.nodes[i].tokens) is not None],
        )
        for path in trace.branches
    ]
    nan = np.nan  # what both have in common is the first one's
    np.testing.assert_array_equal(joined, [[nan, nan, -1.0, -2.0], [nan, nan, -1.0, -4.0]])


def test_totals_are_distinct_beginnings_whatever_the_branches() -> None:
    rng = random.Random(5)
    for _ in range(200):
        branches = [
            [
                ([rng.randrange(2) for _ in range(rng.randrange(4))], i % 2 == 1)
                for i in range(rng.randrange(1, 6))
            ]
            for _ in range(rng.randrange(1, 6))
        ]
        whole = [[each for ids, _ in branch for each in ids] for branch in branches]
        trace = merged(rows(*branches))
        assert trace_counts(trace).total == len(
            {tuple(ids[: i + 1]) for ids in whole for i in range(len(ids))}
        )
        assert [counts.total for counts in branch_counts(trace)] == list(map(len, whole))
