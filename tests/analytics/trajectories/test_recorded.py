"""A file of recorded trajectories and the dataset rendered from it count alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokscore.analytics.trajectories.counts import InputOutputCounts, branch_counts, trace_counts
from tokscore.analytics.trajectories.limit_report import as_trace, limit_traces
from tokscore.analytics.trajectories.limits import TrajectoryLimits
from tokscore.analytics.trajectories.recorded import RecordedInput
from tokscore.dataset.choices import LimitCount
from tokscore.dataset.tokens import RenderedConversation
from tokscore.rendering import ChatTokenizer, Renderer
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.plan import plan_files
from tokscore.rendering.reading.records import Records
from tokscore.rendering.source import ConversationSource

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}


def step(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    return {"tokens": {"prompt_ids": prompt, "completion_ids": completion}}


def branch(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "completion_token_ids": completion}


def sibling(parent: int | None, message: dict[str, str], *ids: int) -> dict[str, Any]:
    is_sampled = message is ANSWER
    flags = [is_sampled] * len(ids)
    return {"parent": parent, "message": message, "sampled": is_sampled, "token_ids": ids, "mask": flags}


RECORDS: dict[str, dict[str, Any]] = {
    "steps": {
        "prompt": [USER],
        "completion": [ANSWER],
        "reward": 1,
        "trajectory": [step([1, 2, 3, 4, 5, 6], [13, 15, 2]), step([1, 2, 3, 4, 5, 7], [13, 15, 2])],
    },
    "branches": {
        "branches": [branch([1, 2], [27]), branch([1, 2], [27, 28, 29]), branch([1, 2], [28, 29, 30, 31])]
    },
    "equal rows": {"tokens": [[1, 2, 27, 2]] * 3, "masks": [[-100, -100, 27, 2]] * 3},
    "equal siblings": {
        "traces": [
            {
                "nodes": [
                    sibling(None, USER, 1, 2),
                    sibling(0, ANSWER, 27, 2),
                    sibling(0, ANSWER, 27, 2),
                    sibling(2, USER, 5),
                ]
            }
        ]
    },
}
EXPECTED = {  # branches, turns, total, total by branches
    "steps": (2, 2, 13, 18),
    "branches": (3, 3, 9, 14),
    "equal rows": (3, 3, 4, 12),
    "equal siblings": (2, 2, 5, 9),
}


def rendered_trace(path: Path, model: Path) -> Trace:
    plan = plan_files([str(path)])
    source = ConversationSource(plan, Renderer(ChatTokenizer(str(model))), records=Records(plan))
    found = [each for part in source.parts for each in source.read(part)]
    tokens = [each.tokens for each in found if isinstance(each, RenderedConversation)]
    assert tokens, found
    return as_trace(tokens)


@pytest.mark.parametrize("name", RECORDS)
def test_a_file_and_its_dataset_count_alike(name: str, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(RECORDS[name]) + "\n", "utf-8")
    counts = RecordedInput([str(path)]).counts()
    assert (counts.n_branches, counts.n_turns, counts.total, counts.total_by_branches) == EXPECTED[name]
    trace = rendered_trace(path, tiny_model)
    assert trace_counts(trace) == InputOutputCounts(counts.input, counts.output, counts.total)
    assert sum(each.total for each in branch_counts(trace)) == counts.total_by_branches
    assert sum(node.is_sampled for node in trace.nodes) == counts.n_turns
    for limits in (TrajectoryLimits(max_turns=2), TrajectoryLimits(total=9), TrajectoryLimits(output=4)):
        for count in LimitCount:
            ours = RecordedInput([str(path)]).limited(limits, count=count)
            theirs = limit_traces([("x", trace)], limits, count=count)
            assert [row.stop and row.stop[0::2] for row in ours.rows] == [
                row.stop and row.stop[0::2] for row in theirs.rows
            ]
