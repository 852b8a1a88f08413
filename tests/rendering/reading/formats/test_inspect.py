"""Logs of Inspect keep long texts of events apart, wherever they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.fields.attachments import all_attached
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place

LONG, WRITTEN = "Write a file. " * 10, "text that goes on " * 10
ATTACHMENTS = {"a1": LONG, "a2": WRITTEN, "a3": "the p"}


def record(attachments: dict[str, str]) -> dict[str, Any]:
    """A sample as inspect_ai 0.3.285 writes it, whose model called a tool in an answer of several parts."""
    call = {"id": "c1", "function": "write", "type": "function"}
    arguments = {"text": "attachment://a2", "more": ["short", {"deep": "attachment://a2"}]}
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Writing."}],
        "tool_calls": [{**call, "arguments": arguments}],
    }
    parameters = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "attachment://a3"}},
    }
    return {
        "id": 1,
        "epoch": 1,
        "input": "Hi",
        "target": "",
        "messages": [{"role": "user", "content": "Hi"}],
        "events": [
            {
                "event": "model",
                "tools": [{"name": "write", "description": "attachment://a1", "parameters": parameters}],
                "input": [{"role": "user", "content": "Hi"}],
                "output": {"choices": [{"message": answer}]},
            }
        ],
        "attachments": attachments,
    }


def parse(attachments: dict[str, str]) -> Trace:
    trace = load_format("inspect").parse(record(attachments), Place(Path("log.json"), 1))
    assert isinstance(trace, Trace)
    return trace


def test_long_arguments_and_descriptions_of_tools_are_put_back() -> None:
    trace = parse(ATTACHMENTS)
    (called,) = trace.nodes[1].messages[0]["tool_calls"]
    assert called["function"]["arguments"] == {"text": WRITTEN, "more": ["short", {"deep": WRITTEN}]}
    assert trace.tools is not None
    assert trace.tools[0]["function"]["description"] == LONG
    assert trace.tools[0]["function"]["parameters"]["properties"]["text"]["description"] == "the p"


@pytest.mark.parametrize(
    ("lacking", "path"),
    [
        ("a1", "$.events[0].tools[0].description"),
        ("a2", "$.events[0].output.choices[0].message.tool_calls[0].arguments.text"),
    ],
)
def test_an_attachment_that_is_not_there_is_an_error_with_its_place(lacking: str, path: str) -> None:
    with pytest.raises(ConversationError, match="which attachments lacks") as caught:
        parse({key: text for key, text in ATTACHMENTS.items() if key != lacking})
    assert caught.value.path == path


@pytest.mark.parametrize(
    "text", ["attachment://mail/1", "attachment://report.pdf", "attachment:// is a scheme"]
)
def test_an_address_that_a_model_wrote_is_no_attachment(text: str) -> None:
    assert all_attached([{"url": text}], "$", ATTACHMENTS) == [{"url": text}]


@pytest.mark.parametrize(("tools", "status"), [(0, "tools_differ"), (1, None)])
def test_calls_with_other_tools_are_told_by_the_status(tools: int, status: str | None) -> None:
    given = record(ATTACHMENTS)
    given["events"].append({**given["events"][0], "tools": given["events"][0]["tools"] * tools})
    trace = load_format("inspect").parse(given, Place(Path("log.json"), 1))
    assert isinstance(trace, Trace)
    assert trace.status == status
    assert trace.tools is not None


@pytest.mark.parametrize(("is_redacted", "status"), [(True, "redacted_reasoning"), (False, None)])
def test_encrypted_reasoning_is_told_by_the_status(is_redacted: bool, status: str | None) -> None:
    thought = {"type": "reasoning", "reasoning": "gAAAA", "redacted": is_redacted}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello!"}]},
    ]
    sample = {"epoch": 1, "input": "Hi", "target": "", "messages": messages}
    found = load_format("inspect").parse(sample, Place(Path("log.json"), 1))
    assert isinstance(found, Trace)
    assert found.status == status
    answer = found.nodes[1].messages[0]
    assert answer.get("reasoning_content") == (None if is_redacted else "gAAAA")
