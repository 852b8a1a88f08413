"""Results of verifiers evaluations: steps that share their beginnings."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.conversations.trace import NO_PARENT, Trace
from tokscore.rendering.reading.formats.verifiers_results import FORMAT as RESULTS

from .recorded_records import changed, expect_error, messages, metadata, parse, read, records, rows


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


def spoken(trace: Trace) -> list[list[str | None]]:
    return [[each.get("content") for each in messages(trace, i)] for i in range(len(trace.branches))]


def test_the_completion_of_a_record_is_what_the_branch_of_the_last_step_says() -> None:
    trace = read("verifiers_results", 5)
    assert spoken(trace) == [["Hi", "One", None], ["Hi", "One", "Two"]]
    trace = read("verifiers_results", 7)
    assert spoken(trace) == [["Hi", None], ["Hi", None], ["Hi", "Judge.", "Good."]]
    assert [row[:2] for row in rows(trace, 2)][3:] == [
        (60, "user"),
        (2, "user"),
        (70, "assistant"),
        (2, "assistant"),
    ]


def test_a_history_that_comes_back_in_other_ids_keeps_its_words() -> None:
    trace = read("verifiers_results", 6)
    assert [[row[0] for row in rows(trace, i)] for i in (0, 1)] == [
        [1, 20, 2, 30, 2],
        [1, 20, 2, 31, 2, 4, 50, 2],
    ]
    assert spoken(trace) == [["Hi", "One"], ["Hi", "One", "More", "Two"]]


def test_a_completion_of_all_answers_gives_every_step_its_own() -> None:
    record = records("verifiers_results")[7]
    record["completion"] = [{"role": "assistant", "content": text} for text in ("A", "B", "C")]
    assert spoken(parse(RESULTS, record)) == [["Hi", "A"], ["Hi", "B"], ["Hi", "C"]]


def test_steps_of_messages_without_ids_are_branches_where_they_do_not_follow_each_other() -> None:
    record = records("verifiers_results")[0]
    for step in record["trajectory"]:
        step["tokens"] = None
    trace = parse(RESULTS, record)
    assert spoken(trace) == [["Rain?", "", "wet", "Yes."], ["Rain?", "Short, please.", "Wet."]]
    assert [node.is_sampled for node in trace.nodes] == [False, True, False, True, False, True]
    del record["trajectory"][2]
    record["completion"].append({"role": "user", "content": "Thanks."})
    assert spoken(parse(RESULTS, record)) == [["Rain?", "", "wet", "Yes.", "Thanks."]]


def test_messages_on_some_steps_alone_are_refused() -> None:
    record = records("verifiers_results")[7]
    record["trajectory"][1]["completion"] = [{"role": "assistant", "content": "B"}]
    expect_error(
        RESULTS,
        record,
        "$.trajectory[0].completion",
        "is missing; expected messages on all steps, as on trajectory[1], or on none.",
    )


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["trajectory", 0, "tokens", "completion_logprobs"],
            [-1.0] * 4,
            "$.trajectory[0].tokens.completion_logprobs",
            "has 4 values for 3 token ids.",
        ),
        (
            ["trajectory", 0, "tokens", "completion_mask"],
            [1],
            "$.trajectory[0].tokens.completion_mask",
            "has 1 value for 3 token ids.",
        ),
        (
            ["trajectory", 0, "tokens", "prompt_mask"],
            [0] * 5,
            "$.trajectory[0].tokens.prompt_mask",
            "has 5 values for 4 token ids.",
        ),
        (
            ["trajectory", 0, "tokens", "prompt_ids"],
            ["a"],
            "$.trajectory[0].tokens.prompt_ids[0]",
            'is "a"; expected a token id.',
        ),
        (
            ["trajectory", 0, "tokens", "completion_ids"],
            ...,
            "$.trajectory[0].tokens.completion_ids",
            "is missing; expected a list of token ids",
        ),
        (["prompt"], 5, "$.prompt", "is a number; expected a list of messages"),
    ],
)
def test_a_bad_record_names_its_path(where: list[Any], value: object, path: str, reason: str) -> None:
    expect_error(RESULTS, changed("verifiers_results", 1, where, value), path, reason)


def test_steps_without_ids_beside_steps_with_ids_are_refused() -> None:
    record = changed("verifiers_results", 0, ["trajectory", 1, "tokens"], None)
    expect_error(RESULTS, record, "$.trajectory[1].tokens", "missing ids on some steps")
