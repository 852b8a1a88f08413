"""Steps and trajectories of ATIF 1.7 that no model, or another agent, made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place

IDS = {"prompt_token_ids": [1], "completion_token_ids": [2]}


def parse(*steps: dict[str, Any], **more: object) -> Trace:
    record = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a", "version": "1"},
        "steps": [*steps],
        **more,
    }
    trace = load_format("atif").parse(record, Place(Path("a.json"), 1))
    assert isinstance(trace, Trace)
    return trace


USER = {"step_id": 1, "source": "user", "message": "Hi"}
ANSWER = {"step_id": 2, "source": "agent", "message": "Yes"}


@pytest.mark.parametrize(("n_calls", "is_sampled"), [(0, False), (1, True), (2, True), (None, True)])
def test_a_step_without_a_call_of_a_model_is_not_sampled(n_calls: int | None, is_sampled: bool) -> None:
    trace = parse(USER, {**ANSWER, "llm_call_count": n_calls})
    assert [node.is_sampled for node in trace.nodes] == [False, is_sampled]


def test_ids_are_read_where_the_steps_without_any_called_no_model() -> None:
    trace = parse(USER, {**ANSWER, "llm_call_count": 0}, {**ANSWER, "step_id": 3, "metrics": IDS})
    assert trace.status is None
    assert all(node.tokens is not None for node in trace.nodes)


def test_subagents_that_are_left_out_are_told_by_the_status() -> None:
    inner = {"schema_version": "ATIF-v1.7", "agent": {"name": "b", "version": "1"}, "steps": [USER, ANSWER]}
    assert parse(USER, ANSWER, subagent_trajectories=[]).status is None
    assert parse(USER, ANSWER, subagent_trajectories=[inner]).status == "subagents_left_out"
