"""Prompts, completions and preferences as TRL takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokscore.rendering.reading.formats import detect_format
from tokscore.rendering.reading.formats.trl import FORMAT as TRL

from .message_records import ADD, failure, metadata, records, said, trace


def test_trl_text_is_a_message_of_the_user_and_one_of_the_assistant() -> None:
    found = trace(TRL, records("trl.jsonl")[0])
    assert said(found) == [[("user", "What is 2 + 2?"), ("assistant", "4")]]
    assert [node.is_sampled for node in found.nodes] == [False, True]
    assert metadata(found) == {"label": True}


def test_trl_messages_of_prompt_and_completion_are_one_branch() -> None:
    found = trace(TRL, records("trl.jsonl")[1])
    assert said(found) == [
        [
            ("system", "Be brief."),
            ("user", "What is 2 + 2?"),
            ("assistant", None),
            ("tool", "4"),
            ("assistant", "4"),
        ]
    ]
    assert found.nodes[2].messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": 2, "b": 2}
    assert found.tools == [ADD]
    assert found.template_kwargs == {"enable_thinking": False}
    assert found.metadata is None


def test_trl_chosen_and_rejected_are_branches_of_one_prompt() -> None:
    found = trace(TRL, records("trl.jsonl")[2])
    assert [node.parent for node in found.nodes] == [-1, 0, 0, 2, 3]
    assert said(found) == [
        [("user", "Hi"), ("assistant", "Hello!")],
        [("user", "Hi"), ("assistant", "What?"), ("user", "Sorry?"), ("assistant", "Nothing.")],
    ]
    assert metadata(found) == {
        "score_chosen": 8.5,
        "score_rejected": 2.0,
        "margin": 6.5,
        "branches": ["chosen", "rejected"],
    }


@pytest.mark.parametrize("line", [3, 4])
def test_trl_takes_the_prompt_from_what_chosen_and_rejected_share(line: int) -> None:
    found = trace(TRL, records("trl.jsonl")[line])
    assert len(found.nodes) == 3
    assert said(found) == [
        [("user", "Hi"), ("assistant", "Hello!")],
        [("user", "Hi"), ("assistant", "What?")],
    ]


def test_trl_keeps_two_branches_where_chosen_equals_rejected() -> None:
    same = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    found = trace(TRL, {"chosen": same, "rejected": same})
    assert said(found) == [[("user", "Hi"), ("assistant", "Hello!")]] * 2


def test_trl_takes_messages_for_the_prompt_of_choices_that_are_one_message_each() -> None:
    answers = {key: {"role": "assistant", "content": key} for key in ("chosen", "rejected")}
    record = {"messages": [{"role": "user", "content": "Hi"}], **answers}
    assert detect_format(record) is TRL
    assert said(trace(TRL, record)) == [
        [("user", "Hi"), ("assistant", "chosen")],
        [("user", "Hi"), ("assistant", "rejected")],
    ]
    assert failure(TRL, answers).startswith("$.chosen is one message, of which the prompt cannot be told")


ASKED = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "2 + 2?"},
]
ANSWER = {"role": "assistant", "content": "4"}
LOOKED_UP = [
    {"role": "tool_call", "content": {"name": "add", "arguments": {"a": 2, "b": 2}}},
    {"role": "tool_response", "content": "4"},
    ANSWER,
]


@pytest.mark.parametrize(
    ("record", "rejected"),
    [
        ({"messages": [*ASKED, ANSWER], "rejected_response": "5"}, [("assistant", "5")]),
        ({"messages": json.dumps([*ASKED, ANSWER]), "rejected_response": "5"}, [("assistant", "5")]),
        (
            {"messages": [*ASKED, ANSWER], "rejected_response": LOOKED_UP},
            [("assistant", ""), ("tool", "4"), ("assistant", "4")],
        ),
        (
            {
                "messages": [*ASKED, ANSWER],
                "rejected_messages": [*ASKED, {"role": "assistant", "content": "5"}],
                "rejected_response": None,
            },
            [("assistant", "5")],
        ),
    ],
)
def test_trl_takes_what_ms_swift_rejects_of_a_conversation_for_a_branch(
    record: dict[str, Any], rejected: list[tuple[str, str]]
) -> None:
    assert detect_format(record) is TRL
    found = trace(TRL, record)
    prompt = [(message["role"], message["content"]) for message in ASKED]
    assert said(found) == [[*prompt, ("assistant", "4")], [*prompt, *rejected]]
    # Earlier answers are the prompt's; calls and results of a branch are its own.
    assert [node.is_sampled for node in found.nodes[:4]] == [False, False, False, True]
    assert metadata(found) == {"branches": ["chosen", "rejected"]}


def test_trl_what_is_chosen_of_ms_swift_may_call_tools() -> None:
    found = trace(TRL, {"messages": [*ASKED, *LOOKED_UP], "rejected_response": "5"})
    assert [len(branch) for branch in said(found)] == [6, 4]
    assert said(found)[1][-1] == ("assistant", "5")


def test_trl_prompt_alone_is_one_branch() -> None:
    found = trace(TRL, records("trl.jsonl")[5])
    assert said(found) == [[("user", "Count to three.")]]
    assert found.tools == [ADD]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"prompt": "Hi", "completion": 4},
            "$.completion is a number; expected text or a list of messages.",
        ),
        (
            {"prompt": [{"content": "Hi"}]},
            "$.prompt[0].role is missing; expected system, user, assistant or tool.",
        ),
        (
            {"chosen": "yes", "rejected": "no"},
            "$.chosen is text, of which the prompt cannot be told; expected messages, or a prompt of its own.",
        ),
        (
            {"prompt": "Hi", "chosen": "yes"},
            "$.rejected is missing; expected text or a list of messages, as there is chosen.",
        ),
        (
            {"messages": ASKED, "rejected_response": "5"},
            "$.messages end with a user; expected the answer that is chosen behind it, since one is rejected.",
        ),
        (
            {"messages": [*ASKED, ANSWER], "rejected_response": 5},
            "$.rejected_response is a number; expected text or a list of messages.",
        ),
        (
            {"messages": [*ASKED, ANSWER], "rejected_messages": [{"content": "5"}]},
            "$.rejected_messages[0].role is missing; expected system, user, assistant or tool.",
        ),
        (
            {"completion": "yes"},
            "$.prompt is missing; expected text or a list of messages.",
        ),
        (
            {"prompt": "Hi", "tools": "[{]"},
            "$.tools is not JSON: JSON is malformed: object keys must be strings (byte 2); expected a list of "
            "tools as JSON text.",
        ),
    ],
)
def test_trl_says_what_is_wrong(record: dict[str, Any], expected: str) -> None:
    assert failure(TRL, record) == expected
