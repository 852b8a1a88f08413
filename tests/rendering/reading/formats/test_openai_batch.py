"""Requests of a batch joined with the answers of the server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tokscore.dataset.choices import OnError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.tokens import RenderedConversation
from tokscore.rendering import open_source
from tokscore.rendering.conversations.conversation import LOGPROBS_UNUSED_STATUS
from tokscore.rendering.conversations.trace import Usage
from tokscore.rendering.reading.formats.openai_batch import FORMAT as BATCH
from tokscore.rendering.reading.formats.openai_batch import IDS_UNUSED_STATUS
from tokscore.rendering.run import render_source

from .message_records import ADD, batch, changed, failure, metadata, records, said, trace


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


def test_batch_answers_keep_every_key_that_holds_something() -> None:
    record = batch("plain")
    given = record["response"]["body"]["choices"][0]["message"]
    given |= {
        "refusal": None,
        "annotations": [],
        "reasoning_details": [{"text": "r"}],
        "function_call": {"name": "f"},
    }
    found = trace(BATCH, record).nodes[1].messages[0]
    assert found == {
        "role": "assistant",
        "content": "Hello!",
        "reasoning_details": [{"text": "r"}],
        "function_call": {"name": "f"},
    }


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
        ((*BODY, "prompt_logprobs"), [None], "prompt_logprobs has 1 value for 4 token ids."),
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
        ((*CHOICE, "token_ids"), [27], "choices[0].logprobs.content has 2 values for 1 token id."),
        (
            (*CHOICE, "token_ids"),
            None,
            "choices[0].token_ids is missing; expected a list of token ids, as on 1 other choice.",
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


def test_batch_ids_of_answers_go_unused_without_those_of_the_prompt() -> None:
    record = changed(batch("sum"), *BODY, "prompt_token_ids", to=None)
    found = trace(BATCH, record)
    assert found.status == f"{IDS_UNUSED_STATUS},{LOGPROBS_UNUSED_STATUS}"  # those of the prompt
    assert all(node.tokens is None for node in found.nodes)
    assert len(found.branches) == 2
    assert failure(BATCH, changed(record, *CHOICE, "token_ids", 0, to=-1)).endswith(
        "choices[0].token_ids[0] is -1; expected a token id."
    )


def test_a_broken_line_of_outputs_costs_one_conversation(tiny_model: Path, tmp_path: Path) -> None:
    """Also where a choice has ids that go unused, which the table says."""
    requests, outputs = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = [{"custom_id": name, "body": {"messages": [{"role": "user", "content": "Hi"}]}} for name in "abc"]
    requests.write_text("".join(json.dumps(each) + "\n" for each in asked))
    choice = {"message": {"role": "assistant", "content": "Yo"}, "token_ids": [5]}
    answers = [
        json.dumps({"custom_id": name, "response": {"status_code": 200, "body": {"choices": [choice]}}})
        for name in "abc"
    ]
    outputs.write_text(f"{answers[0]}\n{answers[1][:-9]}\n{answers[2]}\n")
    source = open_source([str(requests), str(outputs)], str(tiny_model))
    render_source(source, tmp_path / "out", on_error=OnError.SKIP)
    dataset = Dataset(tmp_path / "out")
    kept = [(each.row.conversation_id, each.row.status) for each in dataset.read_part(0)]
    assert kept == [("a", IDS_UNUSED_STATUS), ("c", IDS_UNUSED_STATUS)]
    failed = [(each.source_file, each.source_line, each.reason[:36]) for each in dataset.failures()]
    assert failed == [
        ("in.jsonl", 2, 'is "no output for this request"; exp'),
        ("out.jsonl", 2, "is not JSON: Input data was truncate"),
    ]


def said_of(text: str, logprob: float, content: bytes | None = None) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": None if content is None else list(content)}


FIRST, SECOND = said_of("Y", -0.5, b"Y"), said_of("o", -0.25)
YO_IDS = [said_of("token_id:56", -0.5, b"token_id:56"), said_of("token_id:78", -0.25)]
HALVES = [said_of("\ufffd", -1.0, "\ufffd".encode()), said_of("", -2.0, b"\xa9")]
NAN = math.nan


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        ("Yo", [FIRST, SECOND], [-0.5, -0.25, NAN]),
        ("Yo", [FIRST, SECOND, said_of("<|im_end|>", -0.125)], [-0.5, -0.25, -0.125]),
        ("Yo", [FIRST, SECOND, said_of("", -0.125, b"")], [-0.5, -0.25, -0.125]),
        ("é", HALVES, [-1.0, -2.0, NAN]),
        ("Yo", [said_of("Yo", -0.5)], None),
        ("Yo", [FIRST, said_of("a", -0.25)], None),
        ("Yo", [FIRST, SECOND, said_of("!", -0.25)], None),
        ("Yo", [FIRST], None),
        ("Yo", YO_IDS, [-0.5, -0.25, NAN]),
        ("Yo", [*YO_IDS, said_of("token_id:258", -0.125)], [-0.5, -0.25, -0.125]),
        ("Yo", [said_of("token_id:55", -0.5), YO_IDS[1]], None),
        ("Yo", [YO_IDS[0], SECOND], None),
    ],
)
def test_logprobs_without_ids_are_kept_where_the_same_tokens_are_rendered(
    tiny_model: Path, tmp_path: Path, text: str, content: list[object], expected: list[float] | None
) -> None:
    ask = [{"role": "assistant", "content": "Yo"}, {"role": "user", "content": "Hi"}]
    answer = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}}
    record = {
        "custom_id": "a",
        "request": {"body": {"messages": ask}},
        "response": {"status_code": 200, "body": {"choices": [answer]}},
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    source = open_source(str(tmp_path / "a.jsonl"), str(tiny_model))
    (found,) = source.read(source.parts[0])
    assert isinstance(found, RenderedConversation)
    recorded = found.tokens.recorded_logprobs
    if expected is None:
        assert (found.row.status, recorded) == (LOGPROBS_UNUSED_STATUS, None)
    else:
        assert found.row.status == "ok"
        assert recorded is not None
        is_answer = (found.tokens.message_indices == 2) & (found.tokens.sampled_mask == 1)
        np.testing.assert_array_equal(recorded[is_answer], np.array(expected, np.float32))
        assert np.isnan(recorded[~is_answer]).all()


def test_logprobs_of_a_prompt_without_ids_are_said_to_go_unused() -> None:
    record = changed(batch("plain"), *BODY, "prompt_logprobs", to=[None, {"9": {"logprob": -0.5}}])
    assert trace(BATCH, record).status == LOGPROBS_UNUSED_STATUS
    said = failure(BATCH, changed(batch("plain"), *CHOICE, "logprobs", "content", 0, "bytes", 1, to=256))
    assert said.endswith("choices[0].logprobs.content[0].bytes[1] is 256; expected a byte, 0 to 255.")


def test_ids_in_the_texts_of_tokens_are_those_of_the_answer() -> None:
    record = changed(batch("sum"), *CHOICE, "token_ids", to=None)
    content = [said_of("token_id:27", -0.5), said_of("token_id:2", -0.25)]
    tokens = trace(BATCH, changed(record, *CHOICE, "logprobs", to={"content": content})).nodes[1].tokens
    assert tokens is not None
    assert tokens.token_ids.tolist() == [27, 2]
    assert tokens.places[0].path == "$.response.body.choices[0].logprobs.content"
    np.testing.assert_array_equal(tokens.logprobs, np.array([-0.5, -0.25], np.float32))
