"""Fixtures of the example tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# A record of the examples is whatever JSON a user may write, hence Any.
Record = dict[str, Any]


def read_jsonl(path: Path) -> list[Record]:
    """The records of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.fixture(scope="session")
def conversations() -> list[Record]:
    """The example conversations."""
    return read_jsonl(ROOT / "examples" / "conversations.jsonl")


@pytest.fixture(scope="session")
def tau_sample() -> list[Record]:
    """Real conversations with tool calls."""
    return read_jsonl(ROOT / "tests" / "data" / "tau_airline_sample.jsonl")


@pytest.fixture(scope="session")
def template() -> str:
    """The example template."""
    return (ROOT / "examples" / "chatml_tools.jinja").read_text(encoding="utf-8")
