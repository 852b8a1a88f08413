"""Generations as the handlers of Langfuse write them for OpenAI's client and for LangChain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def generation(prompt: object, output: object = "Yes") -> dict[str, Any]:
    return {"id": "o", "type": "GENERATION", "input": prompt, "output": output}


def parse(*generations: dict[str, Any]) -> Trace:
    trace = load_format("langfuse").parse({"observations": list(generations)}, Place(Path("a.jsonl"), 1))
    assert isinstance(trace, Trace)
    return trace


@pytest.mark.parametrize("role", ["assistant", None])
def test_choices_of_one_call_are_branches(role: str | None) -> None:
    output = [{"role": role, "content": "Yes"}, {"role": role, "content": "No"}]
    trace = parse(generation([USER], output))
    assert [(node.parent, node.is_sampled) for node in trace.nodes] == [(-1, False), (0, True), (0, True)]
    assert trace.nodes[2].messages == ({"role": "assistant", "content": "No"},)


def test_answers_that_a_later_prompt_repeats_together_are_one() -> None:
    output = [{"role": "assistant", "content": "Yes"}, {"role": "assistant", "content": "And more"}]
    trace = parse(generation([USER], output), generation([USER, *output, USER], "So"))
    assert [(node.parent, node.is_sampled) for node in trace.nodes] == [
        (-1, False),
        (0, True),
        (1, True),
        (2, False),
        (3, True),
    ]


def test_an_answer_with_the_result_of_its_call_is_one_branch() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    answers = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        result,
        {**USER, "role": "assistant"},
    ]
    assert [node.parent for node in parse(generation([USER], answers)).nodes] == [-1, 0, 1, 2]


def test_functions_of_the_request_are_tools() -> None:
    assert parse(generation({"messages": [USER], "functions": [TOOL["function"]]})).tools == [TOOL]


def test_tools_behind_the_prompt_of_langchain_are_no_messages() -> None:
    behind = [{"role": "tool", "content": TOOL}, {"role": "tool", "content": TOOL}]
    trace = parse(generation([USER, *behind]))
    assert trace.tools == [TOOL, TOOL]
    assert [node.messages[0]["role"] for node in trace.nodes] == ["user", "assistant"]


def test_calls_with_other_tools_are_told_by_the_status() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    first, second = ({"messages": [USER], "tools": [each]} for each in (TOOL, other))
    assert parse(generation(first), generation(first), generation([USER])).status is None
    assert parse(generation(first), generation(second)).status == "tools_differ"
