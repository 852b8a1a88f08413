"""Records that no format knows, read by a map of their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tokscore.cli.app import app
from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats.mapped import mapped_format
from tokscore.rendering.reading.plan import Plan, plan_files, read_lines
from tokscore.rendering.reading.records import Records

from .message_records import PLACE
from .recorded_records import rows

RECORD: dict[str, Any] = {
    "meta": {"uid": "u-7", "score": 0.5},
    "data": [
        {"who": "human", "say": {"text": "2 + 3?"}},
        {"who": "bot", "say": {"text": "5."}, "thoughts": "I add."},
    ],
    "functions": '[{"name": "add", "parameters": {}}]',
}
MAP: dict[str, Any] = {
    "messages": "$.data",
    "role": "who",
    "content": "say.text",
    "reasoning": "thoughts",
    "roles": {"human": "user", "bot": "assistant"},
    "id": "$.meta.uid",
    "tools": "functions",
    "metadata": ["$.meta.score"],
}


def planned(tmp_path: Path, given: object, *records: dict[str, Any]) -> Plan:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return plan_files([str(path)], mapped_format(json.dumps(given)))


def read(given: dict[str, Any], record: dict[str, Any]) -> Conversation:
    found = mapped_format(given).parse(record, PLACE)
    assert isinstance(found, Conversation)
    return found


def test_messages_tools_and_metadata_are_taken_from_their_paths() -> None:
    found = read(MAP, RECORD)
    assert found.messages == [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "5.", "reasoning_content": "I add."},
    ]
    assert found.tools == [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert found.metadata == '{"meta.score":0.5}'


def test_a_record_is_named_by_the_path_of_its_id(tmp_path: Path) -> None:
    plan = planned(tmp_path, MAP, RECORD, {**RECORD, "meta": {}})
    assert [line.conversation_id for line in read_lines(plan, plan.parts[0])] == ["u-7", "own.jsonl:2"]


def test_texts_of_a_record_may_be_messages() -> None:
    given = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "$.a[0].text"}]}
    found = read(given, {"q": "2 + 3?", "a": [{"text": "5."}]})
    assert [(each["role"], each["content"]) for each in found.messages] == [
        ("user", "2 + 3?"),
        ("assistant", "5."),
    ]


def test_messages_may_be_json_text() -> None:
    found = read({"messages": "chat"}, {"chat": '[{"role": "user", "content": "Hi"}]'})
    assert found.messages == [{"role": "user", "content": "Hi"}]


def test_ids_and_logprobs_are_read_from_their_paths() -> None:
    given = {"prompt_token_ids": "$.t.p", "completion_token_ids": "$.t.c", "logprobs": "lp"}
    chosen = mapped_format(given)
    record = {"t": {"p": [1, 2], "c": [3]}, "lp": [-0.5]}
    assert chosen.has_ids
    assert chosen.holds_ids(record)
    trace = chosen.parse(record, PLACE)
    assert isinstance(trace, Trace)
    assert [(each[0], *each[2:]) for each in rows(trace)] == [(1, 0, None), (2, 0, None), (3, 1, -0.5)]
    with pytest.raises(ConversationError, match=r"^\$\.t\.c\[0\] is -3; expected a token id\.$"):
        chosen.parse({"t": {"p": [1], "c": [-3]}}, PLACE)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"turns": []}, "$.data is missing; expected a list of messages, found the keys turns."),
        ({"data": []}, "$.data is empty; expected a list with at least one message."),
        ({"data": ["Hi"]}, "$.data[0] is a string; expected an object."),
        ({"data": [{"say": {"text": "Hi"}}]}, "$.data[0].who is missing; expected a role."),
        ({"data": [{"who": "bot", "say": {"text": 5}}]}, "$.data[0].say.text is a number; expected a string"),
    ],
)
def test_a_wrong_record_is_told_by_the_places_of_the_record(record: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConversationError) as caught:
        mapped_format(MAP).parse(record, PLACE)
    assert str(caught.value).startswith(expected)


def test_a_map_that_does_not_fit_shows_the_first_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, {"messages": "$.turns"}, RECORD)
    assert str(caught.value).startswith(
        "the map does not fit the first record: $.turns is missing; expected a list of messages, found the keys "
        'data, functions, meta.\nown.jsonl:1 is {"meta":{"uid":"u-7"'
    )


def test_a_later_record_that_does_not_fit_is_an_error_row(tmp_path: Path) -> None:
    plan = planned(tmp_path, MAP, RECORD, {"turns": []})
    first, second = Records(plan).traces()
    assert first.line.conversation_id == "u-7"  # type: ignore[union-attr]
    assert second.path == "$.data"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{", "the map is no map of a record: Input data was truncated"),
        ('{"mesages": "x"}', "contains unknown field `mesages`"),
        ("{}", "the map names no messages"),
        ('{"messages": "$."}', "'$.' is no path"),
        ('{"messages": "a[x]"}', "'a[x]' is no path"),
        ('{"prompt_token_ids": "p"}', "the map has token ids of one side"),
        ("nowhere.json", "cannot read the map nowhere.json"),
    ],
)
def test_a_wrong_map_is_told(given: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        mapped_format(given)
    assert expected in str(caught.value)


def test_commands_take_a_map_and_keep_it(tiny_model: Path, tmp_path: Path) -> None:
    records, given, out = tmp_path / "own.jsonl", tmp_path / "map.json", tmp_path / "tokens"
    records.write_text(json.dumps(RECORD) + "\n")
    given.write_text(json.dumps(MAP))

    def command(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(each) for each in arguments])

    rendered = command("render", records, "-m", tiny_model, "-o", out, "--map", given)
    assert rendered.exit_code == 0, rendered.output
    settings = json.loads((out / "manifest.json").read_text())["settings"]
    assert settings["input_format"] == "mapped"
    assert json.loads(settings["map"])["messages"] == "$.data"
    counted = command("stats", records, "--map", given, "--limit", "max_turns=1", "--format", "json")
    assert counted.exit_code == 0, counted.output
    both = command("stats", records, "--map", given, "--input-format", "openai")
    assert "both say how records are read" in str(both.exception)
