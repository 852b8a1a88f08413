"""Records of the formats of messages and texts, and what was read from them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats.batch_files import batch_pairs
from tokscore.rendering.reading.formats.format import Format, Place
from tokscore.rendering.reading.formats.sharegpt import FORMAT as SHAREGPT
from tokscore.rendering.reading.unpacking import unpacked

DATA = Path(__file__).parents[3] / "data" / "formats"
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
