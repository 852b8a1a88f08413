"""Token counts of trajectories, by branch and with every node once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.trajectories.counts import InputOutputCounts, branch_counts, node_counts, trace_counts
from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import NO_PARENT, Node, NodeTokens, Trace, Usage, linear


def recorded(parent: int, mask: Sequence[int]) -> Node:
    """A node of as many ids as the mask has values."""
    tokens = NodeTokens(np.arange(len(mask), dtype=np.int32), np.array(mask, np.int8))
    return Node(parent, ({"role": "assistant"},), 1 in mask, tokens)


def message(parent: int) -> Node:
    return Node(parent, ({"role": "user", "content": "?"},))


def answer(parent: int, n_prompt: int, n_completion: int) -> Node:
    return Node(parent, ({"role": "assistant"},), True, usage=Usage(n_prompt, n_completion))


masks = st.lists(st.sampled_from([1, 0, -1]), max_size=6)


@st.composite
def trees(draw: st.DrawFn) -> Trace:
    """Recorded nodes under any earlier ones."""
    n = draw(st.integers(1, 12))
    return Trace([recorded(draw(st.integers(NO_PARENT, i - 1)), draw(masks)) for i in range(n)])


def rebuilt(trace: Trace, branch: Sequence[int]) -> InputOutputCounts:
    """The counts of one branch from its ids put together."""
    found = np.concatenate([trace.nodes[i].tokens.sampled_mask for i in branch])
    n_output = int((found == 1).sum())
    return InputOutputCounts(len(found) - n_output, n_output, len(found))


def reported(trace: Trace, branch: Sequence[int]) -> InputOutputCounts:
    """The counts of one branch by the reports along it, one after the other."""
    n_input = n_output = 0
    for usage in (trace.nodes[i].usage for i in branch):
        if usage is not None:
            n_input += max(0, usage.n_prompt - (n_input + n_output))
            n_output += usage.n_completion
    return InputOutputCounts(n_input, n_output, n_input + n_output)


def test_a_shared_prefix_counts_once() -> None:
    trace = Trace([recorded(-1, [0, 0]), recorded(0, [1]), recorded(1, [1] * 2), recorded(1, [1] * 4)])
    assert trace_counts(trace) == (2, 7, 9)
    assert branch_counts(trace) == [(2, 3, 5), (2, 5, 7)]


def test_a_prompt_counts_beyond_what_is_on_its_branch() -> None:
    trace = Trace(linear([message(-1), answer(-1, 10, 5), message(-1), answer(-1, 17, 5)]))
    assert trace_counts(trace) == (12, 10, 22)
    assert branch_counts(trace) == [(12, 10, 22)]


def test_a_prompt_that_became_shorter_adds_no_input() -> None:
    trace = Trace(linear([answer(-1, 10, 5), answer(-1, 8, 3), answer(-1, 20, 1)]))
    assert trace_counts(trace) == (12, 9, 21)


def test_ids_that_were_not_recorded_as_generated_are_input() -> None:
    assert trace_counts(Trace([recorded(-1, [0, -1, 1, 1])])) == (2, 2, 4)


def test_recorded_ids_come_before_what_the_server_reported() -> None:
    trace = Trace([recorded(-1, [0, 1])._replace(usage=Usage(100, 100))])
    assert trace_counts(trace) == (1, 1, 2)


def test_a_report_behind_recorded_ids_counts_what_they_lack() -> None:
    trace = Trace(linear([recorded(-1, [0] * 4), recorded(-1, [1] * 3), message(-1), answer(-1, 9, 2)]))
    assert trace_counts(trace) == (4 + 2, 3 + 2, 11)


def test_a_message_before_two_reports_counts_once() -> None:
    trace = Trace([message(-1), answer(0, 10, 5), answer(0, 10, 6)])
    assert trace_counts(trace) == (10, 11, 21)
    assert branch_counts(trace) == [(10, 5, 15), (10, 6, 16)]


def test_messages_of_one_branch_are_not_counted_in_the_other() -> None:
    trace = Trace([message(-1), message(0), answer(1, 10, 1), answer(0, 4, 1)])
    assert trace_counts(trace) == (10, 2, 12)
    assert branch_counts(trace) == [(10, 1, 11), (4, 1, 5)]


@pytest.mark.parametrize(
    ("nodes", "index"),
    [
        ([message(-1)], 0),
        ([recorded(-1, [0]), message(0)], 1),
        ([message(-1), recorded(0, [1])], 0),
        ([message(-1), answer(0, 3, 1), message(0)], 2),
        ([message(-1), Node(0, ({"role": "assistant"},), True), answer(1, 9, 1)], 1),
    ],
    ids=["alone", "last", "before ids", "one of two branches", "generated"],
)
def test_a_node_without_ids_and_report_is_refused(nodes: list[Node], index: int) -> None:
    with pytest.raises(ConversationError, match=rf"at its node {index}, of which neither token ids"):
        trace_counts(Trace(nodes))


@given(trees())
def test_branches_count_as_if_each_were_rebuilt(trace: Trace) -> None:
    assert branch_counts(trace) == [rebuilt(trace, branch) for branch in trace.branches]


@given(trees())
def test_the_total_is_that_of_all_nodes(trace: Trace) -> None:
    assert trace_counts(trace) == rebuilt(trace, range(len(trace.nodes)))


def test_nodes_of_all_lengths_count_their_own_tokens() -> None:
    rng = np.random.default_rng(3)
    for lengths in ([0, 64, 0, 1], [63, 1, 65], [64, 64, 128], [1000, 0, 3], [130] * 5):
        found = [rng.integers(-1, 2, n).tolist() for n in lengths]
        assert node_counts(Trace(linear([recorded(-1, mask) for mask in found]))).tolist() == [
            [len(mask) - mask.count(1), mask.count(1)] for mask in found
        ]


@given(st.lists(masks, min_size=1, max_size=12))
def test_a_linear_trace_counts_as_its_rebuilt_branch(found: list[list[int]]) -> None:
    trace = Trace(linear([recorded(-1, mask) for mask in found]))
    assert branch_counts(trace) == [trace_counts(trace)] == [rebuilt(trace, range(len(found)))]


@st.composite
def reported_trees(draw: st.DrawFn) -> Trace:
    """Messages and reports under any earlier node; every leaf is a report."""
    n = draw(st.integers(1, 10))
    parents = [draw(st.integers(NO_PARENT, i - 1)) for i in range(n)]
    numbers = st.integers(0, 30)
    return Trace(
        [
            message(parent)
            if i in parents and draw(st.booleans())
            else answer(parent, draw(numbers), draw(numbers))
            for i, parent in enumerate(parents)
        ]
    )


@given(reported_trees())
def test_branches_count_as_their_reports_one_by_one(trace: Trace) -> None:
    assert branch_counts(trace) == [reported(trace, branch) for branch in trace.branches]


@given(reported_trees())
def test_no_branch_has_more_tokens_than_the_trace(trace: Trace) -> None:
    whole = trace_counts(trace)
    along = branch_counts(trace)
    assert all(branch.total <= whole.total for branch in along)
    assert whole.output == sum(node.usage.n_completion for node in trace.nodes if node.usage)
    assert whole.total <= sum(branch.total for branch in along)
