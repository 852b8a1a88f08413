"""Records of the formats that carry token ids, and what was read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats.atropos import FORMAT as ATROPOS
from tokscore.rendering.reading.formats.format import Format, Place
from tokscore.rendering.reading.formats.prime_rl import FORMAT as PRIME_RL
from tokscore.rendering.reading.formats.tokens import FORMAT as TOKENS
from tokscore.rendering.reading.formats.verifiers import FORMAT as VERIFIERS
from tokscore.rendering.reading.formats.verifiers_results import FORMAT as RESULTS

DATA = Path(__file__).parents[3] / "data" / "formats"
WITH_IDS = {
    "verifiers": VERIFIERS,
    "verifiers_results": RESULTS,
    "prime_rl": PRIME_RL,
    "atropos": ATROPOS,
    "tokens": TOKENS,
}


def records(name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()]


def parse(chosen: Format, record: dict[str, Any], path: str = "input.jsonl") -> Trace:
    trace = chosen.parse(record, Place(Path(path), 1))
    assert isinstance(trace, Trace)
    return trace


def read(name: str, line: int) -> Trace:
    return parse(WITH_IDS[name], records(name)[line])


def rows(trace: Trace, branch: int = 0) -> list[tuple[int, str | None, int, float | None]]:
    """Id, role, mask and logprob of every token of a branch."""
    path = trace.branches[branch]
    roles = [message["role"] for i in path for message in trace.nodes[i].messages]
    found = []
    for i in path:
        node = trace.nodes[i]
        assert node.tokens is not None
        own = node.messages[-1]["role"] if node.messages else None
        for k, token_id in enumerate(node.tokens.token_ids.tolist()):
            owners, logprobs = node.tokens.message_indices, node.tokens.logprobs
            role = own if owners is None else None if owners[k] < 0 else roles[owners[k]]
            value = None if logprobs is None or np.isnan(logprobs[k]) else float(logprobs[k])
            found.append((token_id, role, int(node.tokens.sampled_mask[k]), value))
    return found


def content(trace: Trace, branch: int = 0) -> list[bool]:
    columns = [trace.nodes[i].tokens for i in trace.branches[branch]]
    return [flag for each in columns if each is not None and each.is_content is not None for flag in each[2]]


def messages(trace: Trace, branch: int = 0) -> list[Any]:
    return [message for i in trace.branches[branch] for message in trace.nodes[i].messages]


def metadata(trace: Trace) -> Any:
    return None if trace.metadata is None else json.loads(trace.metadata)


def changed(name: str, line: int, where: list[Any], value: object) -> dict[str, Any]:
    record = records(name)[line]
    at: Any = record
    for key in where[:-1]:
        at = at[key]
    if value is ...:
        del at[where[-1]]
    else:
        at[where[-1]] = value
    return record


def expect_error(chosen: Format, record: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(ConversationError) as caught:
        parse(chosen, record)
    assert caught.value.path == path
    assert caught.value.reason.startswith(reason)
