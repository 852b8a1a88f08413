"""Which format a record is taken for, and that no ids are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.reading.formats import FORMATS, all_formats, detect_format, load_format, parse_record
from tokscore.rendering.reading.formats.format import Format, Place
from tokscore.rendering.reading.formats.openai_batch import FORMAT as BATCH

from .message_records import DATA, PLACE, batch, records
from .recorded_records import WITH_IDS, parse, rows

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
    "openai_text.jsonl": "openai",
    "tau_bench.json": "tau-bench",
    "tau2_bench.json": "tau2-bench",
    "openhands.jsonl": "openhands",
    "atif.json": "atif",
    "atif_ids.jsonl": "atif",
    "anthropic.jsonl": "anthropic",
    "responses.jsonl": "openai-responses",
    "alpaca.json": "alpaca",
    "xlam.json": "xlam",
    "nemo_rl.jsonl": "nemo-rl",
    "inspect.json": "inspect",
    "inspect.eval": "inspect",
    "langfuse.jsonl": "langfuse",
    "langfuse_page.json": "langfuse",
    "otel.jsonl": "otel",
    "otel_spans.jsonl": "otel",
    "text.jsonl": "text",
}
# Formats that hold for records of these as well, and so are tried behind them.
ALSO = {
    "anthropic": {"openai"},
    "inspect": {"openai"},
    "sharegpt": {"trl"},
    "swe-agent": {"openai"},
    "tau2-bench": {"openai"},
    "trl": {"openai"},
    "verifiers-results": {"trl"},
    "atropos": {"openai"},
    "tokens": {"openai"},
}


@pytest.mark.parametrize(("name", "expected"), FILES.items())
def test_every_record_is_detected_as_its_format(name: str, expected: str) -> None:
    found = [detect_format(record) for record in records(name)]
    assert found
    assert [None if each is None else each.name for each in found] == [expected] * len(found)


@pytest.mark.parametrize("name", FILES)
def test_no_other_format_takes_a_record_for_its_own(name: str) -> None:
    for record in records(name):
        found = {each.name for each in all_formats() if each.matches(record)}
        assert found <= {FILES[name]} | ALSO.get(FILES[name], set())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("forced", FORMATS)
def test_a_record_given_as_another_format_is_read_or_refused(name: str, forced: str) -> None:
    for record in records(name):
        with suppress(ConversationError):  # nothing else may be raised
            parse_record(record, load_format(forced), PLACE, is_given=True)


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
        {"instruction": "Greet.", "output": {"text": "Hello!"}},
        {"query": "Hi", "answers": "Hello!"},
        {"input": [1, 2], "output": [3]},
        {"traj": [], "reward": 1.0},
        {"steps": [{"source": "camera"}], "agent": "x"},
        {"attributes": {"http.method": "GET"}},
        {"type": "SPAN", "input": "Hi", "output": "Hello!"},
        {"trajectory": [{"action": "ls", "observation": "a.py"}]},
        {"input": "Hi", "output": "Hello!"},
        {"conversations": ["Hi"]},
        {"custom_id": "a"},
        {"history": [], "answer": "Hello!"},
        {"text": "Hi", "response": "Hello!"},
        {"text": "Hi", "role": "user"},
        {"text": ["Hi"]},
    ],
)
def test_records_of_no_format_are_not_taken_for_one(record: dict[str, Any]) -> None:
    assert detect_format(record) is None


@pytest.mark.parametrize("name", WITH_IDS)
def test_every_record_of_a_format_matches_it_alone(name: str) -> None:
    for record in records(f"{name}.jsonl"):
        assert [each.name for each in WITH_IDS.values() if each.matches(record)] == [WITH_IDS[name].name]


USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!"}
LOOSE: Sequence[dict[str, Any]] = (
    {"messages": [USER]},
    {"prompt": [USER], "completion": [ANSWER]},
    {"prompt": [USER], "completion": [ANSWER], "reward": 1.0},
    {"conversations": [{"from": "human", "value": "Hi"}]},
    {"input": "a", "output": "b", "score": 1.0},
    {"messages": [USER], "info": {"exit_status": "x"}},
    {"custom_id": "a", "body": {"messages": [USER]}},
    {"prompt_token_ids": [1], "completion_token_ids": [2]},
)


@pytest.mark.parametrize("strict", WITH_IDS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("loose", LOOSE, ids=lambda each: "-".join(each))
def test_ids_of_one_format_are_never_left_out_by_another(strict: Format, loose: dict[str, Any]) -> None:
    chosen = detect_format(loose)
    assert chosen is not None
    record = {**loose, **json.loads(strict.example)}
    if chosen.holds_ids(record):
        return  # its own ids are read
    with pytest.raises(ConversationError) as caught:
        parse_record(record, chosen, Place(Path("x.jsonl"), 2))
    assert strict.name in caught.value.reason
    assert chosen.name in caught.value.reason
    assert detect_format(record) is not chosen  # nor where it is the first record


def test_a_format_that_the_user_names_may_leave_ids_out() -> None:
    record = {"messages": [USER], "prompt_token_ids": [1], "completion_token_ids": [2]}
    found = parse_record(record, load_format("openai"), Place(Path("x.jsonl"), 1), is_given=True)
    assert isinstance(found, Conversation)


@pytest.mark.parametrize("chosen", WITH_IDS.values(), ids=lambda each: each.name)
def test_the_example_of_a_format_holds_the_ids_of_a_real_model(chosen: Format, teacher_model: Path) -> None:
    record = json.loads(chosen.example)
    assert chosen.matches(record)
    found = rows(parse(chosen, record))
    tokenizer = Tokenizer.from_file(str(teacher_model / "tokenizer.json"))
    text = tokenizer.decode([token_id for token_id, *_ in found], skip_special_tokens=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>"
    assert [each[2:] for each in found] == [(0, None)] * 10 + [(1, -0.5), (1, -0.25), (1, -0.125)]


@pytest.mark.parametrize("chosen", WITH_IDS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"prompt": "a", "completion": "b"},
        {"prompt": ["a"], "completion": ["b"], "step": 1, "reward": 1.0, "advantage": 0.5},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"conversations": [{"from": "human", "value": "Hi"}]},
        {"input": "a", "output": "b", "score": 1.0},
        {"tokens": ["a", "b"], "masks": [1, 0]},
        {"trajectory": [{"action": "ls"}], "info": {}},
        {"custom_id": "a", "response": {"body": {"prompt_token_ids": [1]}}},
        {"traces": "none", "nodes": [1], "branches": ["main"]},
    ],
)
def test_records_of_other_formats_do_not_match(chosen: Format, record: dict[str, Any]) -> None:
    assert not chosen.matches(record)
