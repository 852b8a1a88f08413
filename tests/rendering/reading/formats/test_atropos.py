"""Groups of trajectories as Atropos sends them."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.conversations.trace import NO_PARENT
from tokscore.rendering.reading.formats.atropos import FORMAT as ATROPOS

from .recorded_records import changed, expect_error, messages, metadata, parse, read, records, rows


def test_atropos_gives_a_branch_for_every_trajectory() -> None:
    trace = read("atropos", 0)
    assert [node.parent for node in trace.nodes] == [NO_PARENT, 0, 1, 2, NO_PARENT, 4]
    assert rows(trace, 0) == [
        (1, "user", 0, None),
        (20, "user", 0, None),
        (3, "user", 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, 0.0),
        (4, "user", 0, None),
        (3, "user", 0, None),
        (50, "assistant", 1, -1.5),
    ]
    assert rows(trace, 1) == [
        (1, None, 0, None),
        (20, None, 0, None),
        (3, None, 0, None),
        (31, "assistant", 1, -0.75),
    ]


def test_atropos_shares_messages_among_the_runs_of_the_mask() -> None:
    trace = read("atropos", 0)
    assert [[message["content"] for message in trace.nodes[i].messages] for i in trace.branches[0]] == [
        ["Brief.", "Rain?"],
        ["Where?"],
        ["Oslo"],
        ["Yes."],
    ]


def test_atropos_messages_that_do_not_fit_the_mask_are_kept_for_the_template_to_divide() -> None:
    trace = read("atropos", 2)
    assert messages(trace) == records("atropos")[2]["messages"][0]
    assert [len(trace.nodes[i].messages) for i in trace.branches[0]][1:] == [0] * (len(trace.branches[0]) - 1)


def test_messages_without_a_run_of_the_mask_are_nodes_without_ids() -> None:
    said = [{"role": role, "content": role} for role in ("user", "assistant", "tool")]
    trace = parse(ATROPOS, changed("atropos", 2, ["messages", 0], said))
    assert messages(trace) == said
    assert rows(trace) == [(7, "assistant", 1, None), (8, "assistant", 1, None)]
    assert [node.is_sampled for node in trace.nodes] == [False, True, False]


def test_atropos_keeps_scores() -> None:
    assert metadata(read("atropos", 1)) == {"scores": [0.5]}
    assert metadata(read("atropos", 0))["overrides"] == [{}, {"set_advantage_to_zero": True}]


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (["masks"], [], "$.masks", "has 0 values for 1 trajectory."),
        (["masks", 0], [2, 3], "$.masks[0]", "has 2 values for 3 token ids."),
        (["masks", 0, 1], 1, "$.masks[0][1]", "is 1; expected the token id 2 or -100."),
        (["tokens", 0, 1], -5, "$.tokens[0][1]", "is -5; expected a token id."),
        (["tokens", 0], [], "$.tokens[0]", "is empty; expected at least one token id."),
        (["tokens"], [], "$.tokens", "is empty; expected at least one trajectory."),
        (["tokens", 0], 5, "$.tokens[0]", "is a number; expected a list."),
        (["inference_logprobs"], [[-1.0] * 4], "$.inference_logprobs[0]", "has 4 values for 3 token ids."),
        (["messages"], [[{"content": "Hi"}]], "$.messages[0][0].role", "is missing; expected system"),
    ],
)
def test_a_bad_record_names_its_path(where: list[Any], value: object, path: str, reason: str) -> None:
    expect_error(ATROPOS, changed("atropos", 1, where, value), path, reason)
