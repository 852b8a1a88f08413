"""The formats that carry token ids: what each token is must come out as it was recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tokscore.rendering.conversations import Conversation
from tokscore.rendering.errors import ConversationError
from tokscore.rendering.formats import Format, Place, detect_format, load_format, parse_record
from tokscore.rendering.formats.atropos import FORMAT as ATROPOS
from tokscore.rendering.formats.fields import logprob_array
from tokscore.rendering.formats.prime_rl import FORMAT as PRIME_RL
from tokscore.rendering.formats.tokens import FORMAT as TOKENS
from tokscore.rendering.formats.tokens import tokens_record
from tokscore.rendering.formats.verifiers import FORMAT as VERIFIERS
from tokscore.rendering.formats.verifiers_results import FORMAT as RESULTS
from tokscore.rendering.rendered import MessageFacts, RenderedTokens
from tokscore.rendering.traces import NO_PARENT, Trace

DATA = Path(__file__).parents[2] / "data" / "formats"
FILES = {
    "verifiers": VERIFIERS,
    "verifiers_results": RESULTS,
    "prime_rl": PRIME_RL,
    "atropos": ATROPOS,
    "tokens": TOKENS,
}


def records(name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()]


def parse(chosen: Format, record: dict[str, Any], path: str = "input.jsonl") -> Trace:
    trace = chosen.parse(record, Place(Path(path), 1))
    assert isinstance(trace, Trace)
    return trace


def read(name: str, line: int) -> Trace:
    return parse(FILES[name], records(name)[line])


def rows(trace: Trace, branch: int = 0) -> list[tuple[int, str | None, int, float | None]]:
    """Id, role, mask and logprob of every token of a branch."""
    path = trace.branches[branch]
    roles = [message["role"] for i in path for message in trace.nodes[i].messages]
    found = []
    for i in path:
        node = trace.nodes[i]
        assert node.tokens is not None
        own = node.messages[-1]["role"] if node.messages else None
        for k, token_id in enumerate(node.tokens.token_ids.tolist()):
            owners, logprobs = node.tokens.message_indices, node.tokens.logprobs
            role = own if owners is None else None if owners[k] < 0 else roles[owners[k]]
            value = None if logprobs is None or np.isnan(logprobs[k]) else float(logprobs[k])
            found.append((token_id, role, int(node.tokens.sampled_mask[k]), value))
    return found


def content(trace: Trace, branch: int = 0) -> list[bool]:
    columns = [trace.nodes[i].tokens for i in trace.branches[branch]]
    return [flag for each in columns if each is not None and each.is_content is not None for flag in each[2]]


def messages(trace: Trace, branch: int = 0) -> list[Any]:
    return [message for i in trace.branches[branch] for message in trace.nodes[i].messages]


def metadata(trace: Trace) -> Any:
    return None if trace.metadata is None else json.loads(trace.metadata)


def changed(name: str, line: int, where: list[Any], value: object) -> dict[str, Any]:
    record = records(name)[line]
    at: Any = record
    for key in where[:-1]:
        at = at[key]
    if value is ...:
        del at[where[-1]]
    else:
        at[where[-1]] = value
    return record


# Detection


@pytest.mark.parametrize("name", FILES)
def test_every_record_of_a_format_matches_it_alone(name: str) -> None:
    for record in records(name):
        assert [each.name for each in FILES.values() if each.matches(record)] == [FILES[name].name]


USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!"}
LOOSE: Sequence[dict[str, Any]] = (
    {"messages": [USER]},
    {"prompt": [USER], "completion": [ANSWER]},
    {"prompt": [USER], "completion": [ANSWER], "reward": 1.0},
    {"conversations": [{"from": "human", "value": "Hi"}]},
    {"input": "a", "output": "b", "score": 1.0},
    {"messages": [USER], "info": {"exit_status": "x"}},
    {"custom_id": "a", "body": {"messages": [USER]}},
    {"prompt_token_ids": [1], "completion_token_ids": [2]},
)


@pytest.mark.parametrize("strict", FILES.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("loose", LOOSE, ids=lambda each: "-".join(each))
def test_ids_of_one_format_are_never_left_out_by_another(strict: Format, loose: dict[str, Any]) -> None:
    chosen = detect_format(loose)
    assert chosen is not None
    record = {**loose, **json.loads(strict.example)}
    if chosen.holds_ids(record):
        return  # its own ids are read
    with pytest.raises(ConversationError) as caught:
        parse_record(record, chosen, Place(Path("x.jsonl"), 2))
    assert strict.name in caught.value.reason
    assert chosen.name in caught.value.reason
    assert detect_format(record) is not chosen  # nor where it is the first record


def test_a_format_that_the_user_names_may_leave_ids_out() -> None:
    record = {"messages": [USER], "prompt_token_ids": [1], "completion_token_ids": [2]}
    found = parse_record(record, load_format("openai"), Place(Path("x.jsonl"), 1), is_given=True)
    assert isinstance(found, Conversation)


@pytest.mark.parametrize("chosen", FILES.values(), ids=lambda each: each.name)
def test_the_example_of_a_format_can_be_read(chosen: Format) -> None:
    record = json.loads(chosen.example)
    assert chosen.matches(record)
    assert next(token_id for token_id, *_ in rows(parse(chosen, record))) == 1


@pytest.mark.parametrize("chosen", FILES.values(), ids=lambda each: each.name)
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"prompt": "a", "completion": "b"},
        {"prompt": ["a"], "completion": ["b"], "step": 1, "reward": 1.0, "advantage": 0.5},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"conversations": [{"from": "human", "value": "Hi"}]},
        {"input": "a", "output": "b", "score": 1.0},
        {"tokens": ["a", "b"], "masks": [1, 0]},
        {"trajectory": [{"action": "ls"}], "info": {}},
        {"custom_id": "a", "response": {"body": {"prompt_token_ids": [1]}}},
        {"traces": "none", "nodes": [1], "branches": ["main"]},
    ],
)
def test_records_of_other_formats_do_not_match(chosen: Format, record: dict[str, Any]) -> None:
    assert not chosen.matches(record)


# verifiers


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


# verifiers-results


def test_steps_share_the_nodes_that_their_prompts_begin_with() -> None:
    trace = read("verifiers_results", 0)
    assert [node.parent for node in trace.nodes] == [NO_PARENT, 0, 1, 2, 0, 4]
    assert rows(trace, 0) == [
        (1, "user", 0, None),
        (20, "user", 0, None),
        (2, "user", 0, None),
        (3, "user", 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, -0.25),
        (4, "tool", 0, None),
        (40, "tool", 0, None),
        (2, "tool", 0, None),
        (3, "tool", 0, None),
        (50, "assistant", 1, -1.5),
        (2, "assistant", 1, -0.0625),
    ]
    assert rows(trace, 1)[4:] == [
        (99, "user", 0, None),
        (3, "user", 0, None),
        (60, "assistant", 1, -3.0),
    ]


def test_steps_add_the_messages_that_are_new() -> None:
    trace = read("verifiers_results", 0)
    assert [message["content"] for message in messages(trace, 0)] == ["Rain?", "", "wet", "Yes."]
    assert [message["content"] for message in messages(trace, 1)] == ["Rain?", "Short, please.", "Wet."]
    assert trace.nodes[1].messages[0]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ]


def test_results_keep_rewards_and_the_advantages_of_steps() -> None:
    trace = read("verifiers_results", 0)
    assert metadata(trace) == {
        "example_id": 1,
        "task": "weather",
        "answer": "yes",
        "reward": 1.0,
        "metrics": {"correct": 1.0},
        "is_completed": True,
        "advantages": [0.5, 0.5, -1.0],
    }
    assert trace.tools is not None
    assert trace.tools[0]["function"]["name"] == "weather"


def test_one_step_takes_the_messages_of_the_record() -> None:
    trace = read("verifiers_results", 1)
    assert rows(trace) == [
        (1, "user", 0, None),
        (15, "user", 0, None),
        (2, "user", 0, None),
        (3, "user", 0, None),
        (27, "assistant", 1, -0.5),
        (28, "assistant", 1, -0.25),
        (2, "assistant", 0, -0.125),
    ]
    assert [message["content"] for message in messages(trace)] == ["Hi", "Hello!"]


def test_steps_without_messages_share_those_of_the_record() -> None:
    trace = read("verifiers_results", 2)
    assert [[message["content"] for message in node.messages] for node in trace.nodes] == [
        ["Hi", "Yes?", "Hi"],
        ["One"],
        ["More"],
        ["Two"],
    ]
    assert [row[0] for row in rows(trace)] == [1, 15, 27, 2, 16, 28, 2]
    assert [row[3] for row in rows(trace)] == [None] * 7


def test_results_of_text_become_a_user_and_an_assistant() -> None:
    trace = read("verifiers_results", 3)
    assert messages(trace) == [
        {"role": "user", "content": "2 + 2 ="},
        {"role": "assistant", "content": " 4"},
    ]
    assert [(node.is_sampled, node.tokens) for node in trace.nodes] == [(False, None), (True, None)]


def test_results_without_ids_are_one_branch_of_messages() -> None:
    trace = read("verifiers_results", 4)
    assert trace.branches == ((0, 1, 2, 3),)
    assert [node.is_sampled for node in trace.nodes] == [False, True, False, True]
    assert trace.tools is not None
    assert trace.tools[0]["function"]["name"] == "weather"


def test_a_shared_prefix_is_stored_once() -> None:
    trace = read("verifiers_results", 5)
    held = [node.tokens.token_ids.tolist() for node in trace.nodes if node.tokens is not None]
    assert held == [[1, 2], [3], [4, 5], [6, 7, 8, 9]]
    assert sum(map(len, held)) == 9
    assert [[row[0] for row in rows(trace, i)] for i in range(len(trace.branches))] == [
        [1, 2, 3, 4, 5],
        [1, 2, 3, 6, 7, 8, 9],
    ]


# prime-rl


def test_prime_rl_gives_every_token_and_no_logprob_outside_the_mask() -> None:
    trace = read("prime_rl", 0)
    assert rows(trace) == [
        (1, None, 0, None),
        (20, None, 0, None),
        (3, None, 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, 0.0),
        (4, None, 0, None),
        (3, None, 0, None),
        (50, "assistant", 1, -1.5),
    ]
    assert [node.is_sampled for node in trace.nodes] == [False, True, False, True]


def test_prime_rl_keeps_what_the_trainer_computed() -> None:
    found = metadata(read("prime_rl", 0))
    assert (found["step"], found["rank"], found["sample_id"]) == (3, 1, "s1")
    assert found["trainer_logprobs"] == records("prime_rl")[0]["trainer_logprobs"]


def test_prime_rl_spreads_logprobs_of_the_mask() -> None:
    assert rows(read("prime_rl", 1)) == [
        (1, None, 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, -0.25),
    ]


def test_prime_rl_without_sampled_tokens_has_no_turn() -> None:
    trace = read("prime_rl", 2)
    assert rows(trace) == [(30, None, 0, None), (2, None, 0, None)]
    assert not any(node.is_sampled for node in trace.nodes)


def test_the_path_of_an_export_gives_step_and_rank() -> None:
    trace = parse(PRIME_RL, records("prime_rl")[1], "run/token_exports/step_40/rank_2.jsonl")
    assert metadata(trace) == {"step": 40, "rank": 2}


# atropos


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


# tokens


def test_tokens_gives_owner_mask_and_logprob_of_every_id() -> None:
    trace = read("tokens", 0)
    assert rows(trace) == [
        (0, None, 0, None),
        (1, "user", 0, None),
        (20, "user", 0, None),
        (2, "user", -1, None),
        (3, "assistant", 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, -0.25),
        (9, "user", 0, None),
    ]
    assert content(trace) == [False, False, True, False, False, True, False, False]
    assert [message["content"] for message in messages(trace)] == ["Hi", "Hello!"]
    assert [node.is_sampled for node in trace.nodes] == [False, False, True, False]
    assert metadata(trace) == {"score": 1}


def test_tokens_without_mask_were_sampled_from_the_completion_on() -> None:
    assert rows(read("tokens", 1)) == [
        (1, None, 0, None),
        (15, None, 0, None),
        (27, "assistant", 1, None),
        (2, "assistant", 1, None),
    ]


def test_tokens_takes_logprobs_of_the_completion_alone() -> None:
    assert [row[3] for row in rows(read("tokens", 2))] == [None, None, -0.5, -0.25]


def test_tokens_of_a_later_message_may_come_first() -> None:
    trace = read("tokens", 3)
    assert [row[1] for row in rows(trace)] == ["user", "system", "user", "assistant"]
    assert [message["role"] for message in messages(trace)] == ["system", "user", "assistant"]


def test_tokens_holds_branches() -> None:
    trace = read("tokens", 4)
    assert [[row[0] for row in rows(trace, i)] for i in (0, 1)] == [[1, 15, 27], [1, 16, 28, 29]]
    assert [message.get("content") for message in messages(trace, 1)] == ["Hi", "Ho"]
    assert metadata(trace) == {"score": 2}


def test_tokens_keeps_messages_of_which_nothing_was_printed() -> None:
    trace = read("tokens", 5)
    assert [message["content"] for message in messages(trace)] == ["s", "a", "b", "c"]
    assert [row[:2] for row in rows(trace)] == [(5, "user"), (8, "assistant")]


def rendered(n_prompt: int, logprobs: bool) -> RenderedTokens:
    """Gemma's order of messages, BOS, a message without tokens, and a stop that opens the next message."""
    owners = np.array([-1, 1, 0, 0, 1, 2, 2, 2, 3, 3][: n_prompt + 5], np.int32)
    n = len(owners)
    values = np.where(np.arange(n) % 3, -np.arange(n) / 7, np.nan).astype(np.float32)
    return RenderedTokens(
        token_ids=np.arange(100, 100 + n, dtype=np.int32),
        message_indices=owners,
        sampled_mask=np.array([0, 0, 0, -1, 0, 0, 1, 1, 1, 0], np.int8)[:n],
        is_content=np.array([0, 0, 1, 1, 1, 0, 1, 0, 0, 1], bool)[:n],
        source_codes=np.zeros(n, np.int16),
        sources=("template",),
        messages=(
            MessageFacts("system"),
            MessageFacts("user"),
            MessageFacts("assistant"),
            MessageFacts("tool", "weather"),
            MessageFacts("user"),
        ),
        recorded_logprobs=values if logprobs else None,
    )


def assert_same_tokens(trace: Trace, branch: int, tokens: RenderedTokens) -> None:
    nodes = [trace.nodes[i].tokens for i in trace.branches[branch]]
    names = {
        "token_ids": tokens.token_ids,
        "sampled_mask": tokens.sampled_mask,
        "is_content": tokens.is_content,
        "message_indices": tokens.message_indices,
        "logprobs": tokens.recorded_logprobs,
    }
    for name, expected in names.items():
        parts = [getattr(node, name) for node in nodes]
        if expected is None:
            assert parts == [None] * len(parts)
        else:
            np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=name, strict=True)
    assert tuple(message["role"] for message in messages(trace, branch)) == tokens.message_roles
    names_of_tools = tuple(message.get("name") for message in messages(trace, branch))
    assert names_of_tools == tokens.message_tool_names


def test_a_record_of_rendered_tokens_gives_them_back() -> None:
    tokens = rendered(5, logprobs=True)
    record = json.loads(json.dumps(tokens_record("a", [tokens], metadata='{"score": 1}')))
    trace = parse(TOKENS, record)
    assert record["id"] == "a"
    assert_same_tokens(trace, 0, tokens)
    assert metadata(trace) == {"score": 1}


def test_a_record_of_branches_gives_them_back() -> None:
    branches = [rendered(5, logprobs=False), rendered(2, logprobs=True)]
    trace = parse(TOKENS, json.loads(json.dumps(tokens_record("a", branches))))
    assert len(trace.branches) == 2
    for i, tokens in enumerate(branches):
        assert_same_tokens(trace, i, tokens)


def test_a_stop_that_opens_the_next_message_makes_no_turn_of_it() -> None:
    trace = parse(TOKENS, tokens_record("a", [rendered(5, logprobs=False)]))
    turns = [[message["role"] for message in node.messages] for node in trace.nodes if node.is_sampled]
    assert turns == [["assistant"]]


# Errors


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (["nodes", 2, "token_ids"], ..., "nodes[2].mask", "has 3 values for 0 token ids."),
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
        (["nodes", 1, "is_content"], [True], "nodes[1].is_content", "has 1 values for 3 token ids."),
        (["nodes", 1, "logprobs"], [-1.0], "nodes[1].logprobs", "has 1 values; the mask holds true 2 times."),
        (["nodes", 1, "logprobs"], [-1.0] * 4, "nodes[1].logprobs", "has 4 values; the mask holds true 2"),
        (["nodes", 0, "logprobs"], [-1.0], "nodes[0].logprobs", "has 1 values; the mask holds true 0 times."),
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


@pytest.mark.parametrize(
    ("name", "where", "path"),
    [
        ("verifiers", ["traces", 0, "nodes", 1, "logprobs", 0], "$.traces[0].nodes[1].logprobs[0]"),
        (
            "verifiers_results",
            ["trajectory", 0, "tokens", "completion_logprobs", 0],
            "$.trajectory[0].tokens.completion_logprobs[0]",
        ),
        ("prime_rl", ["inference_logprobs", -1], "$.inference_logprobs["),
        ("atropos", ["inference_logprobs", 0, -1], "$.inference_logprobs[0]["),
        ("tokens", ["logprobs", -1], "$.logprobs["),
    ],
)
@pytest.mark.parametrize("value", [0.5, 3, float("nan")])
def test_a_recorded_logprob_above_zero_is_refused(
    name: str, where: list[Any], path: str, value: float
) -> None:
    chosen = FILES[name]
    record = json.loads(chosen.example)
    at: Any = record
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    with pytest.raises(ConversationError) as caught:
        parse(chosen, record)
    assert caught.value.path.startswith(path)


def test_a_logprob_of_minus_infinity_and_one_of_rounding_stay() -> None:
    found = logprob_array([float("-inf"), 5e-6, None], "$.logprobs")
    np.testing.assert_array_equal(found, np.array([-np.inf, 5e-6, np.nan], np.float32))


@pytest.mark.parametrize("value", [10**400, 1e300, float("inf"), True, "1"])
def test_a_logprob_that_is_no_number_of_that_size_is_refused(value: object) -> None:
    with pytest.raises(ConversationError, match="expected a number or null"):
        logprob_array([value], "$.logprobs")


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


@pytest.mark.parametrize(
    ("chosen", "name", "where", "value", "path", "reason"),
    [
        (
            RESULTS,
            "verifiers_results",
            ["trajectory", 0, "tokens", "completion_logprobs"],
            [-1.0] * 4,
            "$.trajectory[0].tokens.completion_logprobs",
            "has 4 values for 3 token ids.",
        ),
        (
            RESULTS,
            "verifiers_results",
            ["trajectory", 0, "tokens", "completion_mask"],
            [1],
            "$.trajectory[0].tokens.completion_mask",
            "has 1 values for 3 token ids.",
        ),
        (
            RESULTS,
            "verifiers_results",
            ["trajectory", 0, "tokens", "prompt_mask"],
            [0] * 5,
            "$.trajectory[0].tokens.prompt_mask",
            "has 5 values for 4 token ids.",
        ),
        (
            RESULTS,
            "verifiers_results",
            ["trajectory", 0, "tokens", "prompt_ids"],
            ["a"],
            "$.trajectory[0].tokens.prompt_ids[0]",
            'is "a"; expected a token id.',
        ),
        (
            RESULTS,
            "verifiers_results",
            ["trajectory", 0, "tokens", "completion_ids"],
            ...,
            "$.trajectory[0].tokens.completion_ids",
            "is missing; expected a list of token ids",
        ),
        (RESULTS, "verifiers_results", ["prompt"], 5, "$.prompt", "is a number; expected a list of messages"),
        (
            PRIME_RL,
            "prime_rl",
            ["inference_logprobs"],
            [-1.0] * 4,
            "$.inference_logprobs",
            "has 4 values; expected 3, one a token id, or 2, one where loss_mask is true.",
        ),
        (PRIME_RL, "prime_rl", ["loss_mask"], [1], "$.loss_mask", "has 1 values for 3 token ids."),
        (PRIME_RL, "prime_rl", ["token_ids"], [1, -1, 2], "$.token_ids[1]", "is -1; expected a token id."),
        (PRIME_RL, "prime_rl", ["token_ids"], [], "$.token_ids", "is empty; expected at least one token id."),
        (PRIME_RL, "prime_rl", ["step"], "3", "$.step", "is a string; expected a whole number."),
        (ATROPOS, "atropos", ["masks"], [], "$.masks", "has 0 values for 1 trajectories."),
        (ATROPOS, "atropos", ["masks", 0], [2, 3], "$.masks[0]", "has 2 values for 3 token ids."),
        (ATROPOS, "atropos", ["masks", 0, 1], 1, "$.masks[0][1]", "is 1; expected the token id 2 or -100."),
        (ATROPOS, "atropos", ["tokens", 0, 1], -5, "$.tokens[0][1]", "is -5; expected a token id."),
        (ATROPOS, "atropos", ["tokens", 0], [], "$.tokens[0]", "is empty; expected at least one token id."),
        (ATROPOS, "atropos", ["tokens"], [], "$.tokens", "is empty; expected at least one trajectory."),
        (ATROPOS, "atropos", ["tokens", 0], 5, "$.tokens[0]", "is a number; expected a list."),
        (
            ATROPOS,
            "atropos",
            ["inference_logprobs"],
            [[-1.0] * 4],
            "$.inference_logprobs[0]",
            "has 4 values for 3 token ids.",
        ),
        (
            ATROPOS,
            "atropos",
            ["messages"],
            [[{"content": "Hi"}]],
            "$.messages[0][0].role",
            "is missing; expected system",
        ),
        (
            TOKENS,
            "tokens",
            ["logprobs"],
            [-1.0] * 5,
            "$.logprobs",
            "has 5 values; expected 4, one a token id, or 2, one a completion id.",
        ),
        (
            TOKENS,
            "tokens",
            ["logprobs"],
            [-1.0] * 3,
            "$.logprobs",
            "has 3 values; expected 4, one a token id",
        ),
        (TOKENS, "tokens", ["mask"], [True], "$.mask", "has 1 values for 4 token ids."),
        (TOKENS, "tokens", ["mask"], [0, 0, 3, 0], "$.mask[2]", "is 3; expected true or false."),
        (TOKENS, "tokens", ["is_content"], [], "$.is_content", "has 0 values for 4 token ids."),
        (
            TOKENS,
            "tokens",
            ["prompt_token_ids"],
            [1.5],
            "$.prompt_token_ids[0]",
            "is 1.5; expected a token id.",
        ),
        (
            TOKENS,
            "tokens",
            ["completion_token_ids"],
            ...,
            "$.completion_token_ids",
            "is missing; expected a list of token ids",
        ),
        (TOKENS, "tokens", ["roles"], [["user", 3]], "$.roles", "covers 3 of 4 token ids."),
        (TOKENS, "tokens", ["roles"], [["user", 5]], "$.roles", "covers 5 of 4 token ids."),
        (TOKENS, "tokens", ["roles"], [["user"]], "$.roles[0]", 'is ["user"]; expected [role, n_tokens] or'),
        (TOKENS, "tokens", ["roles"], [[1, 4]], "$.roles[0][0]", "is 1; expected a role or null."),
        (TOKENS, "tokens", ["roles"], [["user", -4]], "$.roles[0][1]", "is -4; expected a whole number."),
        (TOKENS, "tokens", ["roles"], [[None, 4, 0]], "$.roles[0][2]", "is 0, and the role is null"),
        (
            TOKENS,
            "tokens",
            ["roles"],
            [["user", 2], ["tool", 2, 0]],
            "$.roles[1][0]",
            'is "tool"; expected "user", as before for message 0.',
        ),
        (
            TOKENS,
            "tokens",
            ["roles"],
            [["user", 2, 0], ["tool", 2, 2]],
            "$.roles",
            "has message 2 and none for message 1; expected a run of every message, or messages.",
        ),
    ],
)
def test_a_bad_record_names_its_path(
    chosen: Format, name: str, where: list[Any], value: object, path: str, reason: str
) -> None:
    expect_error(chosen, changed(name, 1, where, value), path, reason)


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["messages", 1, "role"],
            "tool",
            "$.messages[1].role",
            'is "tool"; expected "assistant", as in roles.',
        ),
        (["messages"], [{"role": "user"}], "$.roles", "has message 1; there are 1 messages."),
    ],
)
def test_roles_that_do_not_fit_the_messages_are_refused(
    where: list[Any], value: object, path: str, reason: str
) -> None:
    expect_error(TOKENS, changed("tokens", 0, where, value), path, reason)


def test_an_error_in_a_branch_names_the_branch() -> None:
    record = changed("tokens", 4, ["branches", 1, "logprobs"], [-1.0])
    expect_error(TOKENS, record, "$.branches[1].logprobs", "has 1 values; expected 4, one a token id")


def test_steps_without_ids_beside_steps_with_ids_are_refused() -> None:
    record = changed("verifiers_results", 0, ["trajectory", 1, "tokens"], None)
    expect_error(RESULTS, record, "$.trajectory[1].tokens", "missing ids on some steps")


def expect_error(chosen: Format, record: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(ConversationError) as caught:
        parse(chosen, record)
    assert caught.value.path == path
    assert caught.value.reason.startswith(reason)
