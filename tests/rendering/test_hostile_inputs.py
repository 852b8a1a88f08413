"""Hostile records: a result or one clear error each, in proportion to their size."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import sweep
from tokscore.dataset.tokens import FailedConversation
from tokscore.rendering import ChatTokenizer, Conversation, RenderedTokens, Renderer
from tokscore.rendering.inputs import open_source

TOOL_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GOOD = '{"messages": [{"role": "user", "content": "x"}]}'


def with_arguments(arguments: str) -> str:
    call = f'{{"function": {{"name": "f", "arguments": {arguments}}}}}'
    return f'{{"messages": [{{"role": "assistant", "content": "", "tool_calls": [{call}]}}]}}'


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


RENDERED = {
    "NUL": '{"messages": [{"role": "user", "content": "a\\u0000b"}]}',
    "NUL in the id": '{"id": "a\\u0000b", "messages": [{"role": "user", "content": "x"}]}',
    "a pair of surrogates": '{"messages": [{"role": "user", "content": "\\ud83c\\udf89"}]}',
    "a number of 400 digits": with_arguments('{"a": 1' + "0" * 400 + "}"),
    "more than 64 bits": with_arguments('{"a": 18446744073709551616}'),
    "a number next to nothing": with_arguments('{"a": -1e-999}'),
    "a number as id": '{"id": 123456789012345678901234567890, "messages": [{"role": "user", "content": "x"}]}',
    "arguments nested 248 deep": with_arguments(nested(248)),
    "metadata nested 255 deep": f'{{"metadata": {nested(255)}, {GOOD[1:]}',
    "a thousand lists beside each other": with_arguments(f"[{'[], ' * 999}[]]"),
    "20,000 keys": json.dumps(
        {"messages": [{"role": "user", "content": "x", **dict.fromkeys(map(str, range(20_000)))}]}
    ),
    "controls": json.dumps({"messages": [{"role": "user", "content": "\u202e\u0007\x7f\ufeff\ufffe"}]}),
}
REFUSED = {
    "half a pair of surrogates": (
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        "half of a character pair",
    ),
    "half a pair in a key": (
        '{"messages": [{"role": "user", "content": "x", "\\ud800": 1}]}',
        "half of a character pair",
    ),
    "half a pair in arguments": (with_arguments('{"a": "\\udc00"}'), "half of a character pair"),
    "a number of 5,000 digits": (with_arguments('{"a": 1' + "0" * 5000 + "}"), "out of range"),
    "a number beyond floats": (with_arguments('{"a": 1e999}'), "out of range"),
    "no number": (with_arguments('{"a": NaN}'), "is not JSON"),
    "a NUL byte": ('{"messages": [{"role": "user", "content": "\x00"}]}', "is not JSON"),
    "arguments nested 251 deep": (with_arguments(nested(251)), "nested too deeply"),
    "arguments nested 100,000 deep": (with_arguments(nested(100_000)), "nested too deeply"),
    "metadata nested 256 deep": (f'{{"metadata": {nested(256)}, {GOOD[1:]}', "nested too deeply"),
    "metadata nested 5,000 deep": (f'{{"metadata": {nested(5000)}, {GOOD[1:]}', "nested too deeply"),
    "kwargs nested 255 deep": (
        f'{{"chat_template_kwargs": {{"a": {nested(255)}}}, {GOOD[1:]}',
        "nested too deeply",
    ),
    "kwargs of transformers": (
        f'{{"chat_template_kwargs": {{"tokenize": true}}, {GOOD[1:]}',
        "transformers takes it itself",
    ),
    "an id of 2,000 characters": (f'{{"id": "{"x" * 2000}", {GOOD[1:]}', "expected at most"),
}


@pytest.fixture
def outcome(tiny_model: Path, tmp_path: Path) -> Callable[[str], Any]:
    """The outcome of a record between two good ones."""

    def read(record: str) -> Any:
        (tmp_path / "t.jinja").write_text(TOOL_TEMPLATE)
        (tmp_path / "c.jsonl").write_text(f"{GOOD}\n{record}\n{GOOD}\n")
        source = open_source([str(tmp_path / "c.jsonl")], str(tiny_model), template=tmp_path / "t.jinja")
        first, item, last = (item for part in source.parts for item in source.read(part))
        assert not isinstance(first, FailedConversation)
        assert not isinstance(last, FailedConversation)
        return item

    return read


@pytest.mark.parametrize("name", RENDERED)
def test_an_odd_record_renders(outcome: Callable[[str], Any], name: str) -> None:
    item = outcome(RENDERED[name])
    assert not isinstance(item, FailedConversation), item


@pytest.mark.parametrize("name", REFUSED)
def test_an_unusable_record_is_one_clear_error(outcome: Callable[[str], Any], name: str) -> None:
    record, reason = REFUSED[name]
    item = outcome(record)
    assert isinstance(item, FailedConversation)
    assert reason in item.reason


def test_what_is_nested_too_deeply_has_its_place(outcome: Callable[[str], Any]) -> None:
    item = outcome(with_arguments(nested(251)))
    assert item.path == "$.messages[0].tool_calls[0].function"


def chat(n_messages: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": "hello there"} for i in range(n_messages)]


def rendered(model: Path, messages: list[dict[str, str]], *, number: int = 0) -> tuple[RenderedTokens, float]:
    renderer = Renderer(ChatTokenizer(str(model), template=TOOL_TEMPLATE))
    renderer.render(Conversation(chat(4)))
    started = time.process_time()
    tokens = renderer.render(Conversation(messages), number=number)
    return tokens, time.process_time() - started


@pytest.mark.slow
def test_time_grows_with_the_number_of_messages(tiny_model: Path) -> None:
    _, few_s = rendered(tiny_model, chat(1_000))
    tokens, many_s = rendered(tiny_model, chat(10_000))
    assert len(tokens.messages) == 10_000
    assert many_s < 40 * few_s  # ten times the messages; garbage collection takes more of more


MEGABYTES = ["word " * 200_000, "a" * 10**6, "\0" * 10**6, "🎉" * 250_000, "\n" * 10**6]


@pytest.mark.parametrize("content", sweep(MEGABYTES, quick=MEGABYTES[:1]))
def test_a_message_of_a_megabyte_renders(tiny_model: Path, content: str) -> None:
    tokens, elapsed_s = rendered(tiny_model, [{"role": "user", "content": content}])
    assert tokens.is_content.sum() == len(content.encode())
    assert elapsed_s < 60


@pytest.mark.slow
def test_100_000_messages_render(tiny_model: Path) -> None:
    tokens, elapsed_s = rendered(tiny_model, chat(100_000))
    assert len(tokens.messages) == 100_000
    assert elapsed_s < 300


@pytest.mark.slow
def test_a_message_of_50_megabytes_renders(qwen3: Path) -> None:
    content = ("-" * 79 + "\n") * (50 * 2**20 // 80)
    tokens, elapsed_s = rendered(qwen3, [{"role": "user", "content": content}], number=11)  # not its ids
    assert tokens.is_content.sum() > 10**6
    assert elapsed_s < 300
