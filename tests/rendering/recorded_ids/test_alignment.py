"""Ids that hold the text of several messages are divided by the template, or said to be unaligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tokscore.rendering import ChatTokenizer, Conversation, Renderer
from tokscore.rendering.conversations.trace import Node, NodeTokens, Trace, linear
from tokscore.rendering.drift import find_drift
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.recorded_ids.alignment import common_prefix, common_suffix
from tokscore.rendering.recorded_ids.attribute import Recorded, attribute_recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch

ASKED = {"role": "user", "content": "secret user text"}
ANSWER = {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}
ASKED_AGAIN = {"role": "user", "content": "And then?"}
LAST = {"role": "assistant", "content": "Z"}
DIALOGUE = [ASKED, ANSWER, ASKED_AGAIN, LAST]


class Piece(NamedTuple):
    """Recorded text of one message; that of no message where `owner` is -1."""

    text: str
    owner: int
    is_sampled: bool = False


QUESTION = Piece("<|im_start|>user\nsecret user text<|im_end|>\n", 0)
HEADER = Piece("<|im_start|>assistant\n", 1)
THOUGHT = Piece("<think>\nhm\n</think>\n\nYo<|im_end|>", 1, is_sampled=True)
AGAIN = Piece("<|im_start|>user\nAnd then?<|im_end|>\n", 2)
LAST_HEADER = Piece("<|im_start|>assistant\n", 3)
STOPPED = Piece("Z<|im_end|>", 3, is_sampled=True)
NEWLINE = Piece("\n", 1)


@pytest.fixture(scope="module")
def renderer(qwen3: Path, assets: Path) -> Renderer:
    template = (assets / "trl" / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    return Renderer(ChatTokenizer(str(qwen3), template=template))


def tokens_of(renderer: Renderer, *pieces: Piece) -> tuple[NodeTokens, list[int]]:
    ids = renderer.tokenizer.token_ids([piece.text for piece in pieces])
    lengths = [len(each) for each in ids]
    mask = np.repeat([piece.is_sampled for piece in pieces], lengths).astype(np.int8)
    owners = np.repeat([piece.owner for piece in pieces], lengths).tolist()
    return NodeTokens(np.concatenate(ids).astype(np.int32), mask), owners


def held_by_answers(renderer: Renderer, *nodes: tuple[Piece, ...]) -> tuple[Recorded, list[int]]:
    """A branch whose questions have no ids of their own; each answer holds the ids of `nodes`."""
    none = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))
    made: list[Node] = []
    truth: list[int] = []
    for i, pieces in enumerate(nodes):
        tokens, owners = tokens_of(renderer, *pieces)
        truth += owners
        made += [
            Node(-1, (DIALOGUE[2 * i],), False, none),
            Node(-1, (DIALOGUE[2 * i + 1],), True, tokens),
        ]
    said = DIALOGUE[: 2 * len(nodes)]
    return attribute_recorded(RecordedBranch(linear(made), Conversation(said)), renderer), truth


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((QUESTION, HEADER, THOUGHT), id="no newline behind the stop"),
        pytest.param((QUESTION, HEADER, THOUGHT, NEWLINE), id="a newline behind the stop"),
        pytest.param((QUESTION, HEADER, Piece("No<|im_end|>", 1, is_sampled=True)), id="another answer"),
        pytest.param((Piece("### secret  text\n", 0), HEADER, THOUGHT), id="another question"),
        pytest.param((QUESTION, HEADER, Piece("<think>\nh", 1, is_sampled=True)), id="cut answer"),
    ],
)
def test_a_question_inside_the_answers_ids_keeps_its_tokens(
    renderer: Renderer, pieces: tuple[Piece, ...]
) -> None:
    (tokens, status), truth = held_by_answers(renderer, pieces)
    assert status is None
    assert tokens.message_indices.tolist() == truth


def test_a_later_question_is_found_behind_reasoning_that_the_template_drops(renderer: Renderer) -> None:
    newline = NEWLINE._replace(owner=2)  # what is between two messages goes to the one behind it
    (tokens, status), truth = held_by_answers(
        renderer, (QUESTION, HEADER, THOUGHT), (newline, AGAIN, LAST_HEADER, STOPPED)
    )
    assert status is None
    assert tokens.message_indices.tolist() == truth


def test_text_of_another_template_is_nobodys_and_said_to_be(renderer: Renderer) -> None:
    foreign = Piece("### secret user text\n", 0), Piece("### model\n", 1)
    (tokens, status), truth = held_by_answers(renderer, (*foreign, Piece("Yo!", 1, is_sampled=True)))
    assert status == "unaligned"
    sampled = tokens.sampled_mask == 1
    assert (tokens.message_indices[~sampled] == -1).all()
    assert tokens.message_indices[sampled].tolist() == [1] * truth[-sampled.sum() :].count(1)


def test_a_question_that_goes_on_in_the_answers_ids_keeps_its_tokens(renderer: Renderer) -> None:
    first, owners = tokens_of(renderer, Piece("<|im_start|>user\nsecret", 0))
    rest, more = tokens_of(renderer, Piece(" user text<|im_end|>\n", 0), HEADER, THOUGHT)
    nodes = linear([Node(-1, (ASKED,), False, first), Node(-1, (ANSWER,), True, rest)])
    tokens, _ = attribute_recorded(RecordedBranch(nodes, Conversation(DIALOGUE[:2])), renderer)
    assert tokens.message_indices.tolist() == owners + more


# Only the last answer was trained


def one_run(renderer: Renderer, *prompt: Piece) -> tuple[list[RecordedBranch], list[int]]:
    """The same dialogue in each of the formats that record one mask for all ids."""
    tokens, truth = tokens_of(renderer, *prompt, LAST_HEADER, STOPPED)
    ids, n = tokens.token_ids.tolist(), int((tokens.sampled_mask == 0).sum())
    records: dict[str, dict[str, Any]] = {
        "tokens": {"prompt_token_ids": ids[:n], "completion_token_ids": ids[n:], "messages": DIALOGUE},
        "atropos": {"tokens": [ids], "masks": [[-100] * n + ids[n:]], "messages": [DIALOGUE]},
    }
    branches = []
    for name, record in records.items():
        trace = load_format(name).parse(record, Place(Path("x.jsonl"), 1))
        assert isinstance(trace, Trace)
        (item,) = branch_items(trace, renderer.tokenizer)
        assert isinstance(item, RecordedBranch)
        branches.append(item)
    return branches, truth


def test_a_prompt_of_several_turns_is_divided_when_one_answer_was_trained(renderer: Renderer) -> None:
    rendered = renderer.render(Conversation(DIALOGUE))
    prompt = (QUESTION, HEADER, Piece("Yo<|im_end|>\n", 1), AGAIN)
    branches, truth = one_run(renderer, *prompt)
    for branch in branches:
        tokens, status = attribute_recorded(branch, renderer)
        assert status is None
        assert tokens.message_indices.tolist() == truth
        assert tokens.message_roles == rendered.message_roles
        assert find_drift(branch, renderer).message_index == 3  # the template opens it with <think>


def test_an_answer_in_the_prompt_that_is_printed_otherwise_is_the_one_left(renderer: Renderer) -> None:
    branches, truth = one_run(renderer, QUESTION, HEADER, THOUGHT._replace(is_sampled=False), NEWLINE, AGAIN)
    for branch in branches:
        tokens, status = attribute_recorded(branch, renderer)
        assert status is None
        assert tokens.message_indices.tolist() == truth


@pytest.mark.parametrize(
    ("left", "right", "start", "end"),
    [("", "a", 0, 0), ("abc", "abd", 2, 0), ("abc", "abc", 3, 3), ("xbc", "ybc", 0, 2), ("ab", "abab", 2, 2)],
)
def test_common_ends(left: str, right: str, start: int, end: int) -> None:
    assert common_prefix(left, right) == start
    assert common_suffix(left, right) == end
