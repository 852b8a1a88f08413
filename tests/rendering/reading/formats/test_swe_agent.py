"""Trajectories of SWE-agent and mini-swe-agent."""

from __future__ import annotations

import pytest

from tokscore.rendering.conversations.trace import Usage
from tokscore.rendering.reading.formats.swe_agent import FORMAT as SWE_AGENT

from .message_records import changed, failure, metadata, records, said, trace


def test_swe_agent_messages_are_those_of_its_history() -> None:
    found = trace(SWE_AGENT, records("swe_agent.traj")[0])
    assert [node.messages[0] for node in found.nodes] == [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": "A demonstration."},
        {"role": "assistant", "content": "ls"},
        {"role": "user", "content": [{"type": "text", "text": "Fix main.py."}]},
        {
            "role": "assistant",
            "content": "I list the files.",
            "reasoning_content": "First look.",
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "main.py"}], "tool_call_id": "call-1"},
        {"role": "assistant", "content": "Done."},
    ]
    assert metadata(found) == {
        "environment": "swe_main",
        "info": {"exit_status": "submitted", "submission": "diff", "model_stats": {"api_calls": 2}},
    }


def test_swe_agent_demonstrations_are_not_sampled() -> None:
    found = trace(SWE_AGENT, records("swe_agent.traj")[0])
    assert [i for i, node in enumerate(found.nodes) if node.is_sampled] == [4, 6]


def test_swe_agents_are_branches_of_their_own() -> None:
    found = trace(SWE_AGENT, records("swe_agent_two_agents.traj")[0])
    assert said(found) == [
        [("system", "You plan."), ("assistant", "A plan.")],
        [("system", "You write."), ("assistant", "A text.")],
    ]
    assert metadata(found) == {"agents": ["planner", "writer"]}


def test_mini_swe_agent_messages_come_with_their_usage() -> None:
    found = trace(SWE_AGENT, records("mini_swe_agent.traj.json")[0])
    assert said(found) == [
        [
            ("system", "You fix bugs."),
            ("user", "Fix main.py."),
            ("assistant", "ls"),
            ("user", "main.py"),
            ("assistant", "submit"),
        ]
    ]
    assert [node.usage for node in found.nodes] == [None, None, Usage(20, 3), None, None]
    assert all(set(node.messages[0]) == {"role", "content"} for node in found.nodes)
    assert metadata(found) == {
        "instance_id": "repo__1",
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {"exit_status": "Submitted", "submission": "diff", "model_stats": {"api_calls": 2}},
    }


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("history",), [], "$.history is empty; expected a list with at least one message."),
        (("history",), {}, "$.history is an object; expected a list of messages."),
        (("history", 0), "Hi", "$.history[0] is a string; expected an object."),
        (
            ("history", 0, "role"),
            None,
            "$.history[0].role is missing; expected system, user, assistant or tool.",
        ),
        (
            ("history", 5, "tool_call_ids"),
            ["a", "b"],
            "$.history[5].tool_call_ids has 2 ids; expected one a tool result.",
        ),
        (("info",), "done", "$.info is a string; expected an object."),
    ],
)
def test_swe_agent_says_what_is_wrong(path: tuple[str | int, ...], value: object, expected: str) -> None:
    assert failure(SWE_AGENT, changed(records("swe_agent.traj")[0], *path, to=value)) == expected
