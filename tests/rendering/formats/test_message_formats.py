"""The formats of messages and texts: who says what, in which branch, with which facts beside it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tokscore.rendering.conversations import Conversation
from tokscore.rendering.errors import ConversationError
from tokscore.rendering.formats import FORMATS, Format, Place, detect_format, load_format
from tokscore.rendering.formats.openai_batch import FORMAT as BATCH
from tokscore.rendering.formats.sharegpt import FORMAT as SHAREGPT
from tokscore.rendering.formats.swe_agent import FORMAT as SWE_AGENT
from tokscore.rendering.formats.text_dump import FORMAT as TEXT_DUMP
from tokscore.rendering.formats.trl import FORMAT as TRL
from tokscore.rendering.joining import batch_pairs
from tokscore.rendering.traces import Trace, Usage
from tokscore.rendering.unpacking import unpacked

DATA = Path(__file__).parents[2] / "data" / "formats"
PLACE = Place(Path("input.jsonl"), 1)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}


def records(name: str) -> list[dict[str, Any]]:
    path = unpacked(DATA / name, name)
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def batch(custom_id: str) -> dict[str, Any]:
    names = ["openai_batch_requests.jsonl", "openai_batch_outputs.jsonl"]
    (source,) = batch_pairs([DATA / name for name in names], names)
    found = [msgspec.json.decode(line) for line in source.path.read_bytes().splitlines()]
    return next(record for record in found if record["custom_id"] == custom_id)


def trace(chosen: Format, record: dict[str, Any]) -> Trace:
    found = chosen.parse(record, PLACE)
    assert isinstance(found, Trace)
    return found


def conversation(record: dict[str, Any]) -> Conversation:
    found = SHAREGPT.parse(record, PLACE)
    assert isinstance(found, Conversation)
    return found


def said(found: Trace) -> list[list[tuple[str, Any]]]:
    """Role and content of the messages of every branch."""
    return [
        [(message["role"], message.get("content")) for i in path for message in found.nodes[i].messages]
        for path in found.branches
    ]


def metadata(found: Trace | Conversation) -> Any:
    return None if found.metadata is None else json.loads(found.metadata)


def failure(chosen: Format, record: dict[str, Any]) -> str:
    with pytest.raises(ConversationError) as caught:
        chosen.parse(record, PLACE)
    return str(caught.value)


def changed(record: dict[str, Any], *path: str | int, to: object) -> dict[str, Any]:
    """A copy of a record with another value at the path."""
    found: Any = deepcopy(record)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return found


# trl


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


# sharegpt


def test_sharegpt_speakers_become_roles() -> None:
    one, two, three = (conversation(record) for record in records("sharegpt.jsonl"))
    assert [message["role"] for message in one.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [(message["role"], message["content"]) for message in two.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello!"),
        ("user", "And now?"),
        ("assistant", "Bye."),
    ]
    assert [message["role"] for message in three.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_sharegpt_reads_system_tools_and_metadata_where_they_are() -> None:
    one, two, three = (conversation(record) for record in records("sharegpt.jsonl"))
    assert one.messages[0] == {"role": "system", "content": "Use the tools."}
    assert one.tools == three.tools == [ADD]
    assert metadata(one) == {"source": "sums"}
    assert (two.tools, two.metadata) == (None, None)


def test_sharegpt_function_calls_become_tool_calls() -> None:
    one, _, three = (conversation(record) for record in records("sharegpt.jsonl"))
    assert one.messages[2]["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    ]
    calls = three.messages[1]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_sharegpt_reads_the_conversations_of_a_json_array() -> None:
    found = [conversation(record) for record in records("sharegpt_identity.json")]
    assert [len(each.messages) for each in found] == [4, 2]
    assert found[0].messages[0] == {"role": "user", "content": "Who are you?"}


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (
            {"from": "narrator", "value": "Once"},
            '.from is "narrator"; expected one of system, human, user, gpt, chatgpt, assistant, bot, model, '
            "function_call, tool, observation, function.",
        ),
        ({"from": "gpt"}, ".value is missing; expected text, found the keys from."),
        ({"from": "gpt", "value": ["Hi"]}, ".value is a list; expected text."),
        ("Hi", " is a string; expected an object."),
        (
            {"from": "function_call", "value": "add(2, 2)"},
            ".value is not JSON: JSON is malformed: invalid character (byte 0); expected "
            '{"name", "arguments"} or a list of them, as JSON text.',
        ),
        (
            {"from": "function_call", "value": '[{"arguments": {}}]'},
            '.value holds an object without a name; expected {"name", "arguments"} or a list of them, as JSON text.',
        ),
    ],
)
def test_sharegpt_says_what_is_wrong_with_a_turn(turn: object, expected: str) -> None:
    record = {"conversations": [{"from": "human", "value": "Hi"}, turn]}
    assert failure(SHAREGPT, record) == f"$.conversations[1]{expected}"


def test_sharegpt_refuses_two_system_texts() -> None:
    record = records("sharegpt.jsonl")[1] | {"system": "Be long."}
    assert failure(SHAREGPT, record) == (
        '$.system is "Be long.", and the first message is another system text; expected one of them.'
    )


def test_sharegpt_refuses_a_conversation_without_messages() -> None:
    assert failure(SHAREGPT, {"conversations": []}) == (
        "$.conversations is empty; expected a list with at least one message."
    )


# openai-batch


def test_batch_choices_are_branches_of_the_prompt() -> None:
    found = trace(BATCH, batch("sum"))
    assert [node.parent for node in found.nodes] == [-1, 0, 0]
    assert [node.is_sampled for node in found.nodes] == [False, True, True]
    prompt = [("system", "Be brief."), ("user", "What is 2 + 2?")]
    assert said(found) == [[*prompt, ("assistant", "4")], [*prompt, ("assistant", None)]]
    assert found.nodes[1].messages[0] == {
        "role": "assistant",
        "content": "4",
        "reasoning": "Two and two.",
    }
    assert found.nodes[2].messages[0]["tool_calls"][0]["function"]["name"] == "add"
    assert found.tools == [ADD]
    assert found.template_kwargs == {"enable_thinking": False}


def test_batch_ids_and_logprobs_are_those_of_the_server() -> None:
    prompt, first, second = (node.tokens for node in trace(BATCH, batch("sum")).nodes)
    assert prompt is not None
    assert first is not None
    assert second is not None
    assert prompt.token_ids.tolist() == [1, 15, 16, 17]
    assert prompt.sampled_mask.tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(prompt.logprobs, np.array([np.nan, -1.5, -0.125, -2.0], np.float32))
    assert first.token_ids.tolist() == [27, 2]
    assert first.sampled_mask.tolist() == [1, 1]
    np.testing.assert_array_equal(first.logprobs, np.array([-0.5, -0.25], np.float32))
    assert second.token_ids.tolist() == [31, 32, 2]
    assert second.logprobs is None


def test_batch_answer_without_ids_is_kept_with_its_usage() -> None:
    found = trace(BATCH, batch("plain"))
    assert said(found) == [[("user", "Hi"), ("assistant", "Hello!")]]
    assert all(node.tokens is None for node in found.nodes)
    assert found.nodes[1].usage == Usage(9, 3)
    assert metadata(found) == {
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        "model": "small-0",
        "finish_reasons": ["stop"],
    }


def test_batch_usage_of_several_choices_is_metadata_alone() -> None:
    found = trace(BATCH, batch("sum"))
    assert [node.usage for node in found.nodes] == [None, None, None]
    assert metadata(found)["usage"]["completion_tokens"] == 5
    assert metadata(found)["finish_reasons"] == ["stop", "tool_calls"]


def test_batch_request_alone_is_its_messages() -> None:
    found = trace(BATCH, records("openai_batch_requests.jsonl")[0])
    assert said(found) == [[("system", "Be brief."), ("user", "What is 2 + 2?")]]
    assert not any(node.is_sampled for node in found.nodes)
    assert metadata(found) == {"model": "small"}


def test_batch_output_alone_asks_for_the_requests() -> None:
    assert failure(BATCH, records("openai_batch_outputs.jsonl")[0]) == (
        "is an answer without the messages of its request.\n"
        "Give the file of the requests too: tokscore joins both on custom_id."
    )


def test_batch_failure_says_what_the_server_answered() -> None:
    assert failure(BATCH, batch("failed")) == (
        'openai_batch_outputs.jsonl:2: $.response.status_code is 400: "This model\'s maximum context length is 16 tokens."; expected 200.'
    )


def test_batch_request_without_output_says_so() -> None:
    assert failure(BATCH, batch("lost")) == '$.error is "no output for this request"; expected an answer.'


BODY = ("response", "body")
CHOICE = (*BODY, "choices", 0)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ((*BODY, "prompt_token_ids"), [1, -5], "prompt_token_ids[1] is -5; expected a token id."),
        ((*BODY, "prompt_logprobs"), [None], "prompt_logprobs has 1 values for 4 token ids."),
        (
            (*BODY, "prompt_logprobs", 1),
            {"9": {"logprob": -0.5}},
            "prompt_logprobs[1] has no logprob of its token id 15.",
        ),
        (
            (*BODY, "prompt_logprobs", 2, "16", "logprob"),
            "low",
            "prompt_logprobs[2].16.logprob is a string; expected a number.",
        ),
        ((*BODY, "choices"), [], "choices is empty; expected at least one choice."),
        ((*CHOICE, "token_ids"), [27], "choices[0].logprobs.content has 2 values for 1 token ids."),
        (
            (*CHOICE, "token_ids"),
            None,
            "choices[0].token_ids is missing; expected a list of token ids, as on 1 other choices.",
        ),
        ((*CHOICE, "message", "role"), "user", 'choices[0].message.role is "user"; expected assistant.'),
        ((*BODY, "usage"), [9], "usage is a list; expected an object."),
    ],
)
def test_batch_says_what_is_wrong(path: tuple[str | int, ...], value: object, expected: str) -> None:
    assert (
        failure(BATCH, changed(batch("sum"), *path, to=value))
        == f"openai_batch_outputs.jsonl:3: $.response.body.{expected}"
    )


def test_batch_request_without_messages_is_an_error() -> None:
    record = {"custom_id": "a", "body": {"model": "small", "input": "Hi"}}
    assert failure(BATCH, record) == (
        "$.body.messages is missing; expected a list of messages, found the keys input, model."
    )


def test_batch_template_variables_are_named_by_their_place() -> None:
    record = changed(batch("sum"), "request", "body", "chat_template_kwargs", to={"tokenize": True})
    assert failure(BATCH, record) == (
        "$.request.body.chat_template_kwargs.tokenize is not for templates: transformers takes it itself."
    )


# swe-agent


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


# text-dump


def test_text_dump_is_text_that_a_template_printed() -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    verl, skyrl, empty = (trace(TEXT_DUMP, record) for record in records("text_dump.jsonl"))
    assert verl.is_text
    assert said(verl) == [[("user", prompt), ("assistant", "Hello!<|im_end|>")]]
    assert [node.is_sampled for node in verl.nodes] == [False, True]
    assert said(skyrl) == [[("user", prompt), ("assistant", "What?<|im_end|>")]]
    assert said(empty) == [[("user", "Hi"), ("assistant", "")]]


def test_text_dump_keeps_all_other_fields_as_metadata() -> None:
    verl, skyrl, _ = (trace(TEXT_DUMP, record) for record in records("text_dump.jsonl"))
    assert metadata(verl) == {
        "gts": "Hello!",
        "score": 1.0,
        "step": 5,
        "acc": True,
        "rendered_text": True,
    }
    assert metadata(skyrl) == {
        "score": [0.0, 0.5],
        "stop_reason": "stop",
        "env_class": "gsm8k",
        "env_extras": {"answer": "4"},
        "data_source": "sums",
        "rendered_text": True,
    }


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"input": "Hi", "score": 1},
            "$.output is missing; expected the text of an answer, found the keys input, score.",
        ),
        (
            {"input_prompt": 4, "output_response": "Hi"},
            "$.input_prompt is a number; expected the text of a prompt.",
        ),
        ({"input": "", "output": "", "score": 1}, "$.input and output are empty; expected text."),
    ],
)
def test_text_dump_says_what_is_wrong(record: dict[str, Any], expected: str) -> None:
    assert failure(TEXT_DUMP, record) == expected


# all formats

FILES = {
    "verifiers.jsonl": "verifiers",
    "verifiers_results.jsonl": "verifiers-results",
    "prime_rl.jsonl": "prime-rl",
    "atropos.jsonl": "atropos",
    "tokens.jsonl": "tokens",
    "trl.jsonl": "trl",
    "sharegpt.jsonl": "sharegpt",
    "sharegpt_identity.json": "sharegpt",
    "openai_batch_requests.jsonl": "openai-batch",
    "openai_batch_outputs.jsonl": "openai-batch",
    "swe_agent.traj": "swe-agent",
    "swe_agent_two_agents.traj": "swe-agent",
    "mini_swe_agent.traj.json": "swe-agent",
    "text_dump.jsonl": "text-dump",
    "openai.jsonl": "openai",
}


@pytest.mark.parametrize(("name", "expected"), FILES.items())
def test_every_record_is_detected_as_its_format(name: str, expected: str) -> None:
    found = [detect_format(record) for record in records(name)]
    assert found
    assert [None if each is None else each.name for each in found] == [expected] * len(found)


def test_joined_batches_are_detected() -> None:
    found = detect_format(batch("lost"))
    assert found is BATCH


def test_every_file_of_the_folder_is_tried() -> None:
    assert sorted(path.name for path in DATA.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FORMATS)
def test_every_example_is_read_by_its_format(name: str) -> None:
    chosen = load_format(name)
    record = msgspec.json.decode(chosen.example)
    assert detect_format(record) is chosen
    assert chosen.parse(record, PLACE)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hi", "response": "Hello!"},
        {"prompt": "Hi", "completions": ["Hello!"], "labels": [True]},
        {"instruction": "Greet.", "input": "", "output": "Hello!", "score": 1},
        {"input": "Hi", "output": "Hello!"},
        {"conversations": ["Hi"]},
        {"custom_id": "a"},
        {"history": [], "answer": "Hello!"},
        {"text": "Hi"},
    ],
)
def test_records_of_no_format_are_not_taken_for_one(record: dict[str, Any]) -> None:
    assert detect_format(record) is None
