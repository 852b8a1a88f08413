"""Ids that an engine recorded behind a server, and messages as the client sent them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rendering.families import Families
from tokscore.dataset.choices import MessageForm
from tokscore.rendering import Conversation, Renderer
from tokscore.rendering.conversations.trace import Node, NodeTokens, linear
from tokscore.rendering.drift import find_drift
from tokscore.rendering.recorded_ids.attribute import UNALIGNED_STATUS, attribute_recorded
from tokscore.rendering.recorded_ids.branch import RecordedBranch

Message = dict[str, Any]
USER = {"role": "user", "content": "Is there rain in Oslo?"}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "drizzle"}
LAST = {"role": "assistant", "content": "Some drizzle."}


def conversation(content: str | None, arguments: object) -> list[Message]:
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": content, "tool_calls": [call]}, RESULT, LAST]


SENT = conversation(None, '{"city":"Oslo","days":2}')
SHOWN = conversation("", {"city": "Oslo", "days": 2})


def recorded(renderer: Renderer, messages: list[Message], shown: list[Message]) -> RecordedBranch:
    """One list of ids for the prompt and one for the last answer, as an engine has them."""
    tokens = renderer.render(Conversation(shown))
    start = int(np.flatnonzero((tokens.message_indices == 3) & (tokens.sampled_mask == 1))[0])
    prompt = NodeTokens(tokens.token_ids[:start], np.zeros(start, np.int8))
    answer = NodeTokens(tokens.token_ids[start:], np.ones(len(tokens) - start, np.int8))
    nodes = linear([Node(-1, messages[:3], False, prompt), Node(-1, messages[3:], True, answer)])
    return RecordedBranch(nodes, Conversation(messages))


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5", "qwen3_5_think"])
def test_the_branch_is_aligned_as_the_server_showed_it(families: Families, template: str) -> None:
    renderer = families.renderer(template)
    rendered = renderer.render(Conversation(SHOWN))
    branch = recorded(renderer, SENT, SHOWN)
    tokens, status = attribute_recorded(branch, renderer)
    assert status is None
    np.testing.assert_array_equal(tokens.token_ids, rendered.token_ids)
    np.testing.assert_array_equal(tokens.message_indices, rendered.message_indices)
    np.testing.assert_array_equal(tokens.is_content[:-1], rendered.is_content[:-1])
    assert find_drift(branch, renderer).position is None


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5"])
def test_the_branch_is_aligned_where_no_server_was_between(families: Families, template: str) -> None:
    renderer = families.renderer(template, messages=MessageForm.AS_IS)
    branch = recorded(renderer, SENT, SENT)
    renderer = families.renderer(template)
    assert attribute_recorded(branch, renderer).status is None
    assert find_drift(branch, renderer).position is None


def test_messages_as_they_are_do_not_align_where_the_template_refuses_them(families: Families) -> None:
    branch = recorded(families.renderer("qwen3_5_think"), SENT, SHOWN)
    renderer = families.renderer("qwen3_5_think", messages=MessageForm.AS_IS)
    assert attribute_recorded(branch, renderer).status == UNALIGNED_STATUS
