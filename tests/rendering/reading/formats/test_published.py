"""Formats that projects publish: what is read of a record as they write it, and what is said of a wrong one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace, Usage
from tokscore.rendering.reading.formats import detect_format, load_format
from tokscore.rendering.reading.plan import plan_files, read_lines
from tokscore.rendering.reading.records import Records

from .message_records import DATA, PLACE, changed, records, said
from .recorded_records import rows

ADD_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
# Of each record its name, and its branches: role and text; generated messages are marked with *.
READ: dict[str, list[tuple[str, list[str]]]] = {
    "tau_bench.json": [
        (
            "0-0",
            [
                "system:Be brief. user:What time is it? assistant*: tool:15:00 assistant*:It is 15:00. user:###STOP###"
            ],
        ),
        ("0-1", ["user:Hi assistant*:Hello!"]),
    ],
    "tau2_bench.json": [
        (
            "s1",
            [
                'assistant:Hi! How can I help? user:My line is dead. assistant*: tool:{"ok": true} '
                "assistant*:Restart it. user:Works!"
            ],
        ),
        ("s2", ["user:Hi assistant*:Hello!"]),
    ],
    "openhands.jsonl": [
        ("chatcmpl-1", ["system:You fix bugs. user:Fix it. assistant*: tool:a.py assistant*:Done."]),
        ("chatcmpl-2", ["user:Hi assistant*:Hello!"]),
        ("a__b-3", ["system:You fix bugs. user:Fix it. assistant*:ls"]),
    ],
    "atif.json": [
        (
            "s1",
            [
                "user:What is 2 + 3? assistant*:I add. tool:5 assistant*:Done? user:No output. assistant*:It is 5."
            ],
        )
    ],
    "atif_ids.jsonl": [
        (
            "s2",
            [
                "user:Go assistant*:One user:ok assistant*:Two",
                "user:Go assistant:One user:ok assistant:Two user:summarised assistant*:Three",
            ],
        )
    ],
    "anthropic.jsonl": [
        (
            "anthropic.jsonl:1",
            ["system:Be brief. user:2 + 3? assistant*:Adding. tool:5 user:Well? assistant*:5."],
        ),
        ("r1", ["user:Hi assistant:Hello user:Bye assistant*:Bye!"]),
    ],
    "responses.jsonl": [
        ("resp_1", ["system:Be brief. user:2 + 3? assistant*: tool:5 assistant*:5."]),
        ("responses.jsonl:2", ["user:Hi assistant*:Hello!"]),
        ("responses.jsonl:3", ["user:Hi assistant*:Hello!"]),
        ("responses.jsonl:4", ["user:Hi assistant*:Hello!"]),
    ],
    "alpaca.json": [
        ("alpaca.json:1", ["user:Greet. assistant*:Hello!"]),
        ("alpaca.json:2", ["system:Be brief. user:Hi assistant*:Hello! user:Add.\n2 and 3 assistant*:5"]),
    ],
    "xlam.json": [("0", ["user:Add 2 and 3. assistant*:"]), ("1", ["user:Now? assistant*:"])],
    "openai_text.jsonl": [("u1", ["user:2 + 3? assistant*: tool:5 assistant*:5."])],
    "inspect.json": [
        (
            "1-1",
            [
                "system:Be brief. user:2 + 3? assistant*:Adding.",
                "system:Be brief. user:2 + 3? assistant:Adding. tool:5 assistant*:5.",
            ],
        ),
        ("1-2", ["user:2 + 3? assistant*:5."]),
    ],
    "langfuse.jsonl": [
        ("tr1", ["user:2 + 3? assistant*:Adding. tool:5 assistant*:5."]),
        ("o3", ["user:Hi assistant*:Hello!"]),
        ("o4", ["user:Hi assistant*:Hello!", "user:Hi assistant*:Hey!"]),
    ],
    "langfuse_page.json": [("o5", ["user:Hi assistant*:Hello!"])],
    "otel.jsonl": [
        (
            "otel.jsonl:1",
            [
                "system:Be brief. user:2 + 3? assistant*:",
                "system:Be brief. user:2 + 3? assistant: tool:5 assistant*:5.",
            ],
        )
    ],
    "otel_spans.jsonl": [
        ("otel_spans.jsonl:1", ["user:Hi assistant*:Hello!"]),
        ("otel_spans.jsonl:2", ["user:2 + 3? assistant: tool:5 assistant*:5."]),
    ],
}
READ["inspect.eval"] = READ["inspect.json"]


def read(name: str) -> Iterator[tuple[str, Trace]]:
    """Name and content of the records of a file."""
    plan = plan_files([str(DATA / name)])
    found = Records(plan)
    for record in found.traces():
        assert not isinstance(record, ConversationError)
        yield record.line.conversation_id, record.trace  # type: ignore[union-attr]


def spoken(trace: Trace) -> list[str]:
    return [
        " ".join(
            f"{message['role']}{'*' if trace.nodes[i].is_sampled else ''}:{message.get('content') or ''}"
            for i in branch
            for message in trace.nodes[i].messages
        )
        for branch in trace.branches
    ]


def first(name: str, number: int = 0) -> Trace:
    return list(read(name))[number][1]


@pytest.mark.parametrize("name", READ)
def test_a_published_record_is_read_as_it_was_said(name: str) -> None:
    assert [(identifier, spoken(trace)) for identifier, trace in read(name)] == READ[name]


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [
        ("tau2_bench.json", "Look."),
        ("atif.json", "Easy."),
        ("anthropic.jsonl", "I add."),
        ("responses.jsonl", "I add."),
        ("inspect.json", "I add."),
        ("otel.jsonl", "I add."),
    ],
)
def test_reasoning_stands_beside_the_answer(name: str, reasoning: str) -> None:
    found = [message for node in first(name).nodes for message in node.messages]
    assert [each["reasoning_content"] for each in found if "reasoning_content" in each] == [reasoning]


@pytest.mark.parametrize(
    ("name", "n_prompt", "n_completion"),
    [
        ("tau2_bench.json", [20, 30], [5, 3]),
        ("atif.json", [20, 30], [6, 4]),
        ("inspect.json", [20, 20], [6, 6]),
        ("langfuse.jsonl", [20, 30], [6, 3]),
        ("otel.jsonl", [20, 30], [6, 3]),
    ],
)
def test_reported_usage_is_kept(name: str, n_prompt: list[int], n_completion: list[int]) -> None:
    found = [node.usage for node in first(name).nodes if node.usage is not None]
    assert found == [Usage(*each) for each in zip(n_prompt, n_completion, strict=True)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("atif.json", ADD_CALL),
        ("anthropic.jsonl", {**ADD_CALL, "id": "toolu_1"}),
        (
            "responses.jsonl",
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'},
            },
        ),
        ("inspect.json", ADD_CALL),
        (
            "tau2_bench.json",
            {"id": "c1", "type": "function", "function": {"name": "check_line", "arguments": {"line": 7}}},
        ),
        ("xlam.json", {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}),
    ],
)
def test_tool_calls_have_the_shape_of_the_openai_api(name: str, expected: dict[str, Any]) -> None:
    found = [
        call for node in first(name).nodes for each in node.messages for call in each.get("tool_calls", ())
    ]
    assert found[0] == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("anthropic.jsonl", {"type": "object", "properties": {"a": {"type": "integer"}}}),
        ("responses.jsonl", {"type": "object", "properties": {"a": {"type": "integer"}}}),
        ("xlam.json", {"type": "object", "properties": {"a": {"description": "One.", "type": "int"}}}),
        ("otel.jsonl", {"type": "object", "properties": {}}),
    ],
)
def test_tools_have_the_shape_of_the_openai_api(name: str, parameters: dict[str, Any]) -> None:
    tools = first(name).tools
    assert tools is not None
    (tool,) = tools
    assert tool["type"] == "function"
    assert (tool["function"]["name"], tool["function"]["parameters"]) == ("add", parameters)


def test_results_of_tools_name_their_calls() -> None:
    for name in (
        "anthropic.jsonl",
        "responses.jsonl",
        "inspect.json",
        "langfuse.jsonl",
        "otel.jsonl",
        "atif.json",
    ):
        messages = [message for node in first(name).nodes for message in node.messages]
        (call,) = {each["tool_calls"][0]["id"] for each in messages if each.get("tool_calls")}
        assert {each["tool_call_id"] for each in messages if each["role"] == "tool"} == {call}, name


@pytest.mark.parametrize(
    ("name", "number", "status"),
    [("tau2_bench.json", 0, "system_not_recorded"), ("anthropic.jsonl", 1, "redacted_reasoning")],
)
def test_the_status_says_what_the_record_lacks(name: str, number: int, status: str) -> None:
    assert first(name, number).status == status


def test_atif_ids_share_what_their_prompts_have_in_common() -> None:
    trace = first("atif_ids.jsonl")
    assert [[each[0] for each in rows(trace, branch)] for branch in (0, 1)] == [
        [1, 20, 3, 30, 31, 2, 4, 3, 50, 2],
        [1, 40, 3, 51, 2],
    ]
    assert [each[2:] for each in rows(trace, 0)][3:6] == [(1, -0.5), (1, -0.25), (1, -0.125)]


def test_atif_ids_of_some_steps_alone_are_not_used() -> None:
    record = changed(records("atif_ids.jsonl")[0], "steps", 2, "metrics", "prompt_token_ids", to=None)
    trace = load_format("atif").parse(record, PLACE)
    assert trace.status == "recorded_ids_unused"
    assert isinstance(trace, Trace)
    assert all(node.tokens is None for node in trace.nodes)


def test_nemo_rl_padding_is_cut_off_and_prompts_have_no_logprobs() -> None:
    record = records("nemo_rl.jsonl")[0]
    trace = load_format("nemo-rl").parse(record, PLACE._replace(path=Path("train_data_step7.jsonl")))
    assert isinstance(trace, Trace)
    assert [each[0] for each in rows(trace)] == [1, 20, 3, 30, 31, 2]
    assert [each[2:] for each in rows(trace)] == [(0, None)] * 3 + [(1, -0.5), (1, -0.25), (1, -0.125)]
    assert trace.metadata is not None
    assert json.loads(trace.metadata)["step"] == 7


def test_responses_usage_and_logprobs_are_those_of_a_single_answer() -> None:
    several, single = (first("responses.jsonl", number).nodes for number in (0, 1))
    assert all(node.usage is node.logprobs is None for node in several)
    logprobs = single[1].logprobs
    assert logprobs is not None
    assert (single[1].usage, b"".join(logprobs.texts)) == (Usage(8, 7), b"Hello!")


def test_inspect_logprobs_are_those_of_the_answer() -> None:
    (found,) = [node.logprobs for node in first("inspect.json").nodes if node.logprobs is not None]
    assert (found.texts, found.logprobs.tolist()) == ([b"5", b"."], [-0.25, -0.5])


WRONG: list[tuple[str, tuple[str | int, ...], object, str]] = [
    ("tau_bench.json", ("traj", 1, "role"), 3, "$.traj[1].role is 3; expected a string: system"),
    ("tau2_bench.json", ("messages", 3, "role"), None, "$.messages[3].role is null; expected a string"),
    ("openhands.jsonl", ("trajectory", 0), "Hi", "$.trajectory[0] is a string; expected an object."),
    ("openhands.jsonl", ("trajectory",), "[{", "$.trajectory is not JSON: "),
    (
        "atif.json",
        ("steps", 0, "source"),
        "bot",
        '$.steps[0].source is "bot"; expected system, user or agent.',
    ),
    (
        "atif_ids.jsonl",
        ("steps", 1, "metrics", "logprobs"),
        [-1.0],
        "$.steps[1].metrics.logprobs has 1 value for 3 token ids.",
    ),
    (
        "atif_ids.jsonl",
        ("steps", 1, "metrics", "completion_token_ids", 0),
        -4,
        "$.steps[1].metrics.completion_token_ids[0] is -4; expected a token id.",
    ),
    (
        "anthropic.jsonl",
        ("messages", 1, "content", 0, "type"),
        "image",
        '$.messages[1].content[0].type is "image"; expected text, redacted_thinking, thinking, tool_result, '
        "tool_use: tokscore renders text only.",
    ),
    (
        "responses.jsonl",
        ("output", 1, "type"),
        "web_search_call",
        '$.output[1].type is "web_search_call"; expected',
    ),
    (
        "responses.jsonl",
        ("output", 1, "name"),
        None,
        "$.output[1].name is missing; expected the name of a tool",
    ),
    ("alpaca.json", ("instruction",), "", "$.instruction and input are empty; expected text."),
    ("alpaca.json", ("output",), 5, "$.output is a number; expected text."),
    ("xlam.json", ("answers",), "add(2)", "$.answers is not JSON: "),
    ("xlam.json", ("answers",), "[]", "$.answers is empty; expected "),
    ("openai_text.jsonl", ("messages",), "[", "$.messages is not JSON: "),
    ("nemo_rl.jsonl", ("token_ids",), [[1], [2]], "$.token_ids is a list of 2; expected a list of token ids"),
    ("nemo_rl.jsonl", ("input_lengths",), [9], "$.input_lengths is 9; expected a whole number of at most 8"),
    (
        "inspect.json",
        ("events", 2, "output", "choices", 0, "message", "content"),
        "attachment://h2",
        '$.events[2].output.choices[0].message.content is "attachment://h2", which attachments lacks',
    ),
    (
        "inspect.json",
        ("events", 1, "input", 0, "role"),
        "bot",
        '$.events[1].input[0].role is "bot"; expected one of',
    ),
    (
        "langfuse.jsonl",
        ("observations", 2, "input"),
        5,
        "$.observations[2].input is a number; expected messages",
    ),
    (
        "otel.jsonl",
        ("resourceSpans", 0, "scopeSpans", 0, "spans", 0, "attributes", 3, "value", "stringValue"),
        "[{",
        "$.resourceSpans[0].scopeSpans[0].spans[0].attributes.gen_ai.input.messages is not JSON",
    ),
    (
        "otel_spans.jsonl",
        ("attributes", "gen_ai.output.messages"),
        "{}",
        "$.attributes.gen_ai.output.messages is {}",
    ),
]


@pytest.mark.parametrize(("name", "place", "value", "expected"), WRONG)
def test_a_wrong_record_is_told_with_place_found_and_expected(
    name: str, place: tuple[str | int, ...], value: object, expected: str
) -> None:
    record = records(name)[0]
    chosen = detect_format(record)
    assert chosen is not None
    with pytest.raises(ConversationError) as caught:
        chosen.parse(changed(record, *place, to=value), PLACE)
    assert str(caught.value).startswith(expected)


def test_texts_called_input_and_output_name_the_formats_that_would_read_them() -> None:
    record = {"input": "Hi", "output": "Hello!"}
    assert detect_format(record) is None
    with pytest.raises(ConversationError) as caught:
        load_format("openai").parse(record, PLACE)
    assert "`input_format='alpaca'`" in caught.value.hint
    assert "`input_format='text-dump'`" in caught.value.hint
    found = load_format("alpaca").parse(record, PLACE)
    assert isinstance(found, Conversation)
    assert [message["content"] for message in found.messages] == ["Hi", "Hello!"]
    dumped = load_format("text-dump").parse(record, PLACE)
    assert isinstance(dumped, Trace)
    assert said(dumped) == [[("user", "Hi"), ("assistant", "Hello!")]]


def test_simulations_on_lines_of_their_own_are_the_same(tmp_path: Path) -> None:
    whole = json.loads((DATA / "tau2_bench.json").read_text())
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (whole, whole["simulations"][0])))
    plan = plan_files([str(path)])
    assert plan.format.name == "tau2-bench"
    assert [line.conversation_id for line in read_lines(plan, plan.parts[0])] == ["s1", "s2", "s1#2"]
