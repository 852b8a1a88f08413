"""The format of tokscore itself: what is written comes back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tokscore.dataset.tokens import MessageFacts, RenderedTokens
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats.tokens import FORMAT as TOKENS
from tokscore.rendering.reading.formats.tokens import tokens_record

from .recorded_records import changed, content, expect_error, messages, metadata, parse, read, rows


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


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["logprobs"],
            [-1.0] * 5,
            "$.logprobs",
            "has 5 values; expected 4, one a token id, or 2, one a completion id.",
        ),
        (["logprobs"], [-1.0] * 3, "$.logprobs", "has 3 values; expected 4, one a token id"),
        (["mask"], [True], "$.mask", "has 1 value for 4 token ids."),
        (["mask"], [0, 0, 3, 0], "$.mask[2]", "is 3; expected true or false."),
        (["is_content"], [], "$.is_content", "has 0 values for 4 token ids."),
        (["prompt_token_ids"], [1.5], "$.prompt_token_ids[0]", "is 1.5; expected a token id."),
        (["completion_token_ids"], ..., "$.completion_token_ids", "is missing; expected a list of token ids"),
        (["roles"], [["user", 3]], "$.roles", "covers 3 of 4 token ids."),
        (["roles"], [["user", 5]], "$.roles", "covers 5 of 4 token ids."),
        (["roles"], [["user"]], "$.roles[0]", 'is ["user"]; expected [role, n_tokens] or'),
        (["roles"], [[1, 4]], "$.roles[0][0]", "is 1; expected a role or null."),
        (["roles"], [["user", -4]], "$.roles[0][1]", "is -4; expected a whole number."),
        (["roles"], [[None, 4, 0]], "$.roles[0][2]", "is 0, and the role is null"),
        (
            ["roles"],
            [["user", 2], ["tool", 2, 0]],
            "$.roles[1][0]",
            'is "tool"; expected "user", as before for message 0.',
        ),
        (
            ["roles"],
            [["user", 2, 0], ["tool", 2, 2]],
            "$.roles",
            "has message 2 and none for message 1; expected a run of every message, or messages.",
        ),
    ],
)
def test_a_bad_record_names_its_path(where: list[Any], value: object, path: str, reason: str) -> None:
    expect_error(TOKENS, changed("tokens", 1, where, value), path, reason)


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["messages", 1, "role"],
            "tool",
            "$.messages[1].role",
            'is "tool"; expected "assistant", as in roles.',
        ),
        (["messages"], [{"role": "user"}], "$.roles", "has message 1; expected one of 1 message."),
    ],
)
def test_roles_that_do_not_fit_the_messages_are_refused(
    where: list[Any], value: object, path: str, reason: str
) -> None:
    expect_error(TOKENS, changed("tokens", 0, where, value), path, reason)


def test_an_error_in_a_branch_names_the_branch() -> None:
    record = changed("tokens", 4, ["branches", 1, "logprobs"], [-1.0])
    expect_error(TOKENS, record, "$.branches[1].logprobs", "has 1 value; expected 4, one a token id")
