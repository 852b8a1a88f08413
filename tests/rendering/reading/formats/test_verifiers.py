"""Traces of verifiers: every token with its node, and what is wrong by its path."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import NO_PARENT
from tokscore.rendering.reading.formats.verifiers import FORMAT as VERIFIERS

from .recorded_records import changed, content, expect_error, messages, metadata, parse, read, records, rows


def test_verifiers_gives_every_token_of_an_episode() -> None:
    trace = read("verifiers", 0)
    assert rows(trace) == [
        (1, "user", 0, None),
        (20, "user", 0, None),
        (2, "user", 0, None),
        (3, "assistant", 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, -0.25),
        (4, "tool", 0, None),
        (40, "tool", 0, None),
        (2, "tool", 0, None),
        (3, "assistant", 0, None),
        (50, "assistant", 1, -1.5),
        (2, "assistant", 1, -0.0625),
    ]
    assert content(trace) == [False, True, False] * 4
    assert [node.is_sampled for node in trace.nodes] == [False, True, False, True]


def test_verifiers_gives_calls_and_tools_the_shape_of_the_api() -> None:
    trace = read("verifiers", 0)
    assert trace.nodes[1].messages[0]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    ]
    assert trace.tools is not None
    assert [(tool["type"], tool["function"]["name"]) for tool in trace.tools] == [("function", "weather")]


def test_verifiers_adds_cached_tokens_to_the_prompt_of_a_call() -> None:
    assert [node.usage for node in read("verifiers", 0).nodes] == [None, (4, 2), None, None]


def test_verifiers_keeps_what_else_an_episode_says() -> None:
    record = records("verifiers")[0]
    kept = ("env", "task", "group", "run", "ok", "errors")
    assert metadata(read("verifiers", 0)) == {key: record[key] for key in kept} | {
        "rewards": {"correct": {"score": 1.0, "weight": 1.0}},
        "advantages": [None, [1.0, 1.0], None, [0.5, 0.5]],
        "reference_logprobs": [None, [-0.75, -0.125], None, None],
    }


def test_two_calls_that_report_different_usage_of_one_node_are_refused() -> None:
    record = records("verifiers")[0]["traces"][0]
    usage = record["calls"][0]["usage"]
    again = {**record["calls"][0], "usage": {**usage, "prompt_tokens": usage["prompt_tokens"] + 1}}
    record["calls"].append(again)
    with pytest.raises(ConversationError, match="of which a call before reports another usage"):
        parse(VERIFIERS, record)


@pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens", "cached_input_tokens"])
def test_usage_below_zero_is_refused(key: str) -> None:
    record = records("verifiers")[0]["traces"][0]
    record["calls"][0]["usage"][key] = -5
    with pytest.raises(ConversationError, match="is -5; expected a number of tokens, 0 or more") as caught:
        parse(VERIFIERS, record)
    assert caught.value.path == f"$.calls[0].usage.{key}"


def test_a_bare_trace_without_ids_keeps_messages_and_usage() -> None:
    trace = read("verifiers", 1)
    assert messages(trace) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
    ]
    assert [node.tokens for node in trace.nodes] == [None, None]
    assert trace.nodes[1].usage == (9, 3)
    assert trace.metadata is None
    assert trace.tools is None


def test_traces_of_an_episode_become_roots_of_one() -> None:
    trace = read("verifiers", 2)
    assert [node.parent for node in trace.nodes] == [NO_PARENT, 0, 1, 1, NO_PARENT, 4]
    assert trace.branches == ((0, 1, 2), (0, 1, 3), (4, 5))
    assert rows(trace, 0)[-2:] == [(4, "assistant", 1, -1.0), (5, "assistant", 1, -2.0)]
    assert [row[0] for row in rows(trace, 1)] == [1, 2, 3, 6, 7, 8, 9]
    assert metadata(trace)["rewards"] == [{"solved": {"score": 1.0}}, None]


def test_a_sampled_node_without_mask_is_not_known_to_be_sampled() -> None:
    assert rows(read("verifiers", 2), 2) == [
        (11, "system", 0, None),
        (12, "assistant", -1, None),
        (13, "assistant", -1, None),
    ]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("out/rollouts/step_12/train/traces.jsonl", 12),
        ("step_1/run/step_3/traces.jsonl", 3),
        ("out/step_x/step_4.jsonl", None),
    ],
)
def test_the_folder_of_a_rollout_gives_the_step(path: str, step: int | None) -> None:
    trace = parse(VERIFIERS, records("verifiers")[1], path)
    assert metadata(trace) == (None if step is None else {"step": step})


def test_differing_tools_of_traces_with_ids_are_kept_beside_them() -> None:
    record = changed("verifiers", 2, ["traces", 1, "tools"], [{"name": "grade"}])
    trace = parse(VERIFIERS, record)
    assert trace.tools is None
    assert metadata(trace)["tools"] == [None, [{"type": "function", "function": {"name": "grade"}}]]


def two_roots(*tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A trace as verifiers 0.4.0 writes it: the tools of each request stand on the root of its branch."""
    nodes: list[dict[str, Any]] = []
    for each in tools:
        root = {
            "parent": None,
            "message": {"role": "user", "content": "Hi"},
            "sampled": False,
            "token_ids": [],
        }
        answer = {"parent": len(nodes), "message": {"role": "assistant", "content": "Yes"}, "sampled": True}
        nodes += [root if each is None else {**root, "tools": each}, {**answer, "token_ids": []}]
    return {"nodes": nodes, "tools": [{"name": "f"}, {"name": "g"}]}


def test_the_tools_of_a_branch_are_those_of_its_root() -> None:
    trace = parse(VERIFIERS, two_roots([{"name": "f"}], [{"name": "f"}]))
    assert trace.tools == [{"type": "function", "function": {"name": "f"}}]


def test_a_trace_without_tools_on_its_roots_has_its_own() -> None:
    tools = parse(VERIFIERS, two_roots(None, None)).tools
    assert [each["function"]["name"] for each in tools or ()] == ["f", "g"]


@pytest.mark.parametrize("other", [None, [{"name": "g"}]])
def test_rendered_branches_with_other_tools_are_refused(other: list[dict[str, Any]] | None) -> None:
    record = two_roots([{"name": "f"}], other)
    expect_error(VERIFIERS, record, "$.nodes[2].tools", "differs from the tools of nodes[0]")


def test_branches_with_ids_may_have_other_tools() -> None:
    record = two_roots([{"name": "f"}], None)
    for node in record["nodes"]:
        node["token_ids"], node["mask"] = [1], [node["sampled"]]
    trace = parse(VERIFIERS, record)
    assert trace.tools is None
    assert metadata(trace)["tools"] == [[{"type": "function", "function": {"name": "f"}}], None]


def test_logprobs_of_the_trainer_stand_beside_those_of_the_engine() -> None:
    trace = parse(
        VERIFIERS, changed("verifiers", 0, ["traces", 0, "nodes", 1, "trainer_logprobs"], [-0.75, -1])
    )
    tokens = trace.nodes[1].tokens
    assert tokens is not None
    assert tokens.trainer_logprobs is not None
    assert tokens.trainer_logprobs.tolist()[1:] == [-0.75, -1.0]
    assert tokens.logprobs is not None
    assert tokens.logprobs.tolist()[1:] == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["nodes", 2, "token_ids"],
            ...,
            "nodes[2].token_ids",
            "is missing or empty beside a mask of 3 values; expected as many ids.",
        ),
        (
            ["nodes", 2, "parent"],
            3,
            "nodes[2].parent",
            "is 3, a later node; expected an earlier node (0 to 1)",
        ),
        (["nodes", 2, "parent"], 2, "nodes[2].parent", "is 2, the node itself; expected"),
        (["nodes", 0, "parent"], 3, "nodes[0].parent", "is 3, a later node; expected null"),
        (["nodes", 2, "parent"], 99, "nodes[2].parent", "is 99, no node; expected"),
        (["nodes", 2, "parent"], -1, "nodes[2].parent", "is -1, no node; expected"),
        (["nodes", 2, "parent"], "1", "nodes[2].parent", "is a string; expected an earlier node's index"),
        (["nodes", 1, "mask"], [True, True], "nodes[1].mask", "has 2 values for 3 token ids."),
        (["nodes", 1, "mask", 0], 2, "nodes[1].mask[0]", "is 2; expected true or false."),
        (["nodes", 1, "is_content"], [True], "nodes[1].is_content", "has 1 value for 3 token ids."),
        (["nodes", 1, "logprobs"], [-1.0], "nodes[1].logprobs", "has 1 value; the mask holds true 2 times."),
        (["nodes", 1, "logprobs"], [-1.0] * 4, "nodes[1].logprobs", "has 4 values; the mask holds true 2"),
        (["nodes", 0, "logprobs"], [-1.0], "nodes[0].logprobs", "has 1 value; the mask holds true 0 times."),
        (["nodes", 1, "logprobs", 0], "x", "nodes[1].logprobs[0]", 'is "x"; expected a number or null.'),
        (["nodes", 1, "token_ids", 1], -4, "nodes[1].token_ids[1]", "is -4; expected a token id."),
        (["nodes", 1, "token_ids", 1], 1.0, "nodes[1].token_ids[1]", "is 1.0; expected a token id."),
        (["nodes", 1, "token_ids", 1], True, "nodes[1].token_ids[1]", "is true; expected a token id."),
        (["nodes", 1, "token_ids", 1], 2**31, "nodes[1].token_ids[1]", "is 2147483648; expected a token id."),
        (
            ["nodes", 1, "token_ids"],
            "1 2",
            "nodes[1].token_ids",
            "is a string; expected a list of token ids.",
        ),
        (["nodes", 1, "message"], ..., "nodes[1].message", "is missing; expected a message"),
        (["nodes", 1, "message", "role"], ..., "nodes[1].message.role", "is missing; expected system"),
        (
            ["nodes", 1, "message", "tool_calls", 0, "name"],
            ...,
            "nodes[1].message.tool_calls[0]",
            "has no name",
        ),
        (["nodes", 1, "sampled"], 1, "nodes[1].sampled", "is a number; expected true or false."),
        (["nodes", 1], 5, "nodes[1]", "is a number; expected an object."),
        (["nodes"], [], "nodes", "is empty; expected a list with at least one node."),
        (["calls", 0, "node"], 4, "calls[0].node", "is 4, no node; expected 0 to 3 or null."),
        (
            ["calls", 0, "usage", "completion_tokens"],
            ...,
            "calls[0].usage.completion_tokens",
            "is missing; expected a number of tokens",
        ),
    ],
)
def test_a_bad_episode_names_the_node(where: list[Any], value: object, path: str, reason: str) -> None:
    record = changed("verifiers", 0, ["traces", 0, *where], value)
    expect_error(VERIFIERS, record, f"$.traces[0].{path}", reason)


def test_nodes_without_ids_beside_nodes_with_ids_are_refused() -> None:
    record = records("verifiers")[0]
    for key in ("token_ids", "mask", "is_content", "logprobs"):
        record["traces"][0]["nodes"][2].pop(key, None)
    expect_error(
        VERIFIERS,
        record,
        "$.traces[0].nodes[2].token_ids",
        "missing ids on some nodes: this one has none, and nodes[0] has 3; "
        "expected ids on every node of a trace, or on none.",
    )


def test_an_input_message_with_an_empty_list_of_ids_is_a_node_without_any() -> None:
    """So writes verifiers where its renderer cannot tell them from the ids of the answer behind it."""
    nodes = [
        {"parent": None, "sampled": False, "message": {"role": "user", "content": "Hi"}, "token_ids": []},
        {
            "parent": 0,
            "sampled": True,
            "message": {"role": "assistant", "content": "Yo"},
            "token_ids": [1, 2, 3],
            "mask": [False, True, True],
        },
    ]
    trace = parse(VERIFIERS, {"id": "t", "nodes": nodes})
    assert [len(node.tokens.token_ids) for node in trace.nodes if node.tokens is not None] == [0, 3]
    nodes[1]["token_ids"], nodes[1]["mask"], nodes[0]["token_ids"] = [], [], [1]
    with pytest.raises(ConversationError, match="missing ids on some nodes"):
        parse(VERIFIERS, {"id": "t", "nodes": nodes})


def test_parents_in_a_cycle_are_refused() -> None:
    record = changed("verifiers", 0, ["traces", 0, "nodes", 1, "parent"], 2)
    assert record["traces"][0]["nodes"][2]["parent"] == 1
    expect_error(VERIFIERS, record, "$.traces[0].nodes[1].parent", "is 2, a later node; expected")


def test_an_episode_without_traces_is_refused() -> None:
    record = changed("verifiers", 0, ["traces"], [])
    assert VERIFIERS.matches(record)
    expect_error(VERIFIERS, record, "$.traces", "is empty; expected a list with at least one trace.")


def test_differing_tools_of_traces_without_ids_are_refused() -> None:
    bare = records("verifiers")[1]
    record = {"traces": [bare, {**bare, "tools": [{"name": "grade"}]}]}
    expect_error(VERIFIERS, record, "$.traces[1].tools", "differs from the tools of traces[0]")
