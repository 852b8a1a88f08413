"""Images, videos and audio that trainers list beside messages: their text alone is another prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.reading.formats import detect_format, parse_record
from tokscore.rendering.reading.formats.format import Place

USER, ANSWER = {"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "Me"}
SPOKEN = [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "Me"}]
PLAIN = [{"role": "user", "content": "Who?"}, ANSWER]


def parse(record: dict[str, Any]) -> object:
    found = detect_format(record)
    assert found is not None
    return parse_record(record, found, Place(Path("a.jsonl"), 1))


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"messages": [USER, ANSWER], "images": ["a.jpg"]}, "$.images"),  # LLaMA-Factory, ms-swift
        ({"messages": [USER, ANSWER], "images": "a.jpg"}, "$.images"),
        ({"conversations": SPOKEN, "images": ["a.jpg"]}, "$.images"),
        ({"conversations": SPOKEN, "image": "a.jpg"}, "$.image"),  # LLaVA
        ({"conversations": SPOKEN, "image": ["a.jpg"]}, "$.image"),
        ({"instruction": "Who?", "output": "Me", "videos": ["a.mp4"]}, "$.videos"),
        ({"prompt": [USER], "completion": [ANSWER], "images": [{"bytes": "AA", "path": None}]}, "$.images"),
        ({"prompt": PLAIN[:1], "completion": [ANSWER], "image": {"bytes": "AA", "path": None}}, "$.image"),
        ({"messages": PLAIN, "audio": {"array": [0.1], "sampling_rate": 16000}}, "$.audio"),
    ],
)
def test_media_beside_messages_are_refused(record: dict[str, Any], path: str) -> None:
    with pytest.raises(ConversationError, match="tokscore renders text only") as caught:
        parse(record)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "more",
    [
        {"images": [], "videos": None, "audios": ""},
        {"images": [None]},
        {"image": "docker.io/task:1"},  # the container of a task
        {"images": 0},
    ],
)
def test_records_without_any_are_read(more: dict[str, Any]) -> None:
    parse({"messages": PLAIN, **more})
