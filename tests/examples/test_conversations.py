"""The example conversations: what they cover, and that they render on the real tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Record = dict[str, Any]


def roles(record: Record) -> list[str]:
    return [message["role"] for message in record["messages"]]


def texts(record: Record) -> Iterator[str]:
    for message in record["messages"]:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif content:
            yield from (part["text"] for part in content)


def calls(record: Record) -> list[list[Any]]:
    return [message["tool_calls"] for message in record["messages"] if "tool_calls" in message]


def arguments(record: Record) -> list[Any]:
    return [call["function"]["arguments"] for group in calls(record) for call in group]


def reasoned(record: Record) -> list[int]:
    return [i for i, message in enumerate(record["messages"]) if message.get("reasoning_content")]


KINDS: dict[str, Callable[[Record], bool]] = {
    "system": lambda r: roles(r)[0] == "system",
    "no system": lambda r: roles(r)[0] == "user",
    "multi-turn": lambda r: roles(r).count("user") >= 3,
    "reasoning": lambda r: bool(reasoned(r)),
    "reasoning in an earlier turn": lambda r: any("user" in roles(r)[i:] for i in reasoned(r)),
    "tool call, arguments as JSON text": lambda r: any(isinstance(a, str) for a in arguments(r)),
    "tool call, arguments as object": lambda r: any(isinstance(a, dict) for a in arguments(r)),
    "one tool result": lambda r: roles(r).count("tool") == 1,
    "parallel tool results": lambda r: (
        "tool tool" in " ".join(roles(r)) and any(len(c) > 1 for c in calls(r))
    ),
    "null content with tool calls": lambda r: any(
        m.get("tool_calls") and "content" in m and m["content"] is None for m in r["messages"]
    ),
    "missing content with tool calls": lambda r: any(
        m.get("tool_calls") and "content" not in m for m in r["messages"]
    ),
    "content beside tool calls": lambda r: any(
        m.get("tool_calls") and m.get("content") for m in r["messages"]
    ),
    "empty tool result": lambda r: any(m["role"] == "tool" and m["content"] == "" for m in r["messages"]),
    "combining accents": lambda r: any(unicodedata.combining(c) for t in texts(r) for c in t),
    "joined emoji": lambda r: any("\u200d" in t for t in texts(r)),
    "CJK": lambda r: any("\u4e00" <= c <= "\u9fff" for t in texts(r) for c in t),
    "right-to-left": lambda r: any(unicodedata.bidirectional(c) in {"R", "AL"} for t in texts(r) for c in t),
    "indented code": lambda r: any("\n        " in t for t in texts(r)),
    "tabs": lambda r: any("\n\t" in t for t in texts(r)),
    "white space at both ends": lambda r: any(t[0].isspace() and t[-1].isspace() for t in texts(r) if t),
    "typed control token": lambda r: any("<|im_end|>" in t for t in texts(r)),
    "math": lambda r: any("$$" in t for t in texts(r)),
    "JSON answer": lambda r: any(t.startswith("{") for t in texts(r)) and "tools" not in r,
    "content in parts": lambda r: any(isinstance(m.get("content"), list) for m in r["messages"]),
    "ends with the user": lambda r: roles(r)[-1] == "user",
}


@pytest.mark.parametrize("kind", KINDS)
def test_examples_cover(kind: str, conversations: list[Record]) -> None:
    assert [record["id"] for record in conversations if KINDS[kind](record)]


def test_there_are_at_least_sixteen_with_distinct_ids(conversations: list[Record]) -> None:
    ids = {record["id"] for record in conversations}
    assert len(ids) == len(conversations) >= 16


def test_every_tool_result_answers_a_call(conversations: list[Record]) -> None:
    for record in conversations:
        called = [call["id"] for group in calls(record) for call in group]
        answered = [message["tool_call_id"] for message in record["messages"] if message["role"] == "tool"]
        assert called == answered


@pytest.mark.model
@pytest.mark.parametrize("source", ["conversations", "tau_sample"])
def test_ids_on_the_real_tokenizer_are_those_of_the_text(
    source: str, request: pytest.FixtureRequest, teacher_model: Path, template: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(teacher_model)
    for record in request.getfixturevalue(source):
        settings = {"chat_template": template, "tools": record.get("tools")}
        text = tokenizer.apply_chat_template(record["messages"], tokenize=False, **settings)
        ids = tokenizer.apply_chat_template(record["messages"], tokenize=True, return_dict=False, **settings)
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text


@pytest.mark.model
def test_one_conversation_is_long_and_the_whole_stays_small(
    conversations: list[Record], teacher_model: Path, template: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(teacher_model)
    n_tokens = [
        len(
            tokenizer.apply_chat_template(
                record["messages"], chat_template=template, tools=record.get("tools"), return_dict=False
            )
        )
        for record in conversations
    ]
    assert max(n_tokens) >= 3_000
    assert sum(n_tokens) <= 10_000
