"""The header in front of a recorded answer is the answer's, however the format divides the ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.rendering import ChatTokenizer, Renderer
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats import load_format
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.recorded_ids.attribute import Recorded, attribute_recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch

Pieces = list[tuple[str, int, bool]]  # text, message it is of, sampled
FORMATS = ["tokens", "atropos", "verifiers-results"]
HEADER = "<|im_start|>assistant\n"
NEWLINE = -2  # behind a stop, of the answer where the template prints it, else of what is behind it


@pytest.fixture(scope="module")
def renderer(qwen3: Path, assets: Path) -> Renderer:
    template = (assets / "trl" / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    return Renderer(ChatTokenizer(str(qwen3), template=template))


def dialogue(n_turns: int, *, thinks: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i in range(n_turns):
        thought = {"reasoning_content": f"thought {i}"} if thinks else {}
        messages += [
            {"role": "user", "content": f"Question {i}?"},
            {"role": "assistant", "content": f"Answer {i}", **thought},
        ]
    return messages


def pieces_of(messages: list[dict[str, Any]], header: str = HEADER) -> Pieces:
    """Records of an agent loop: prompts end with a header, answers with their stop."""
    found: Pieces = []
    for i, message in enumerate(messages):
        if message["role"] == "user":
            found += [("\n", NEWLINE, False)] if i else []
            found.append((f"<|im_start|>user\n{message['content']}<|im_end|>\n", i, False))
        else:
            thought = message.get("reasoning_content")
            block = f"<think>\n{thought}\n</think>\n\n" if thought else ""
            found += [(header, i, False), (f"{block}{message['content']}<|im_end|>", i, True)]
    return found


def attributed(
    renderer: Renderer, name: str, messages: list[dict[str, Any]], pieces: Pieces
) -> tuple[Recorded, list[int]]:
    made = [ids.tolist() for ids in renderer.tokenizer.token_ids([text for text, _, _ in pieces])]
    ids = [each for piece in made for each in piece]
    lengths = [len(piece) for piece in made]
    owners = np.repeat([owner for _, owner, _ in pieces], lengths).tolist()
    mask = np.repeat([sampled for _, _, sampled in pieces], lengths).tolist()
    record: dict[str, Any]
    if name == "tokens":
        n = mask.index(True)
        record = {"prompt_token_ids": ids[:n], "completion_token_ids": ids[n:], "mask": mask}
        record["messages"] = messages
    elif name == "atropos":
        labels = [each if sampled else -100 for each, sampled in zip(ids, mask, strict=True)]
        record = {"tokens": [ids], "masks": [labels], "messages": [messages]}
    else:
        steps, stop = [], 0
        for piece, (_, _, sampled) in zip(made, pieces, strict=True):
            if sampled:
                answer = {"completion_ids": piece, "completion_mask": [1] * len(piece)}
                steps.append({"tokens": {"prompt_ids": ids[:stop], "prompt_mask": [0] * stop, **answer}})
            stop += len(piece)
        record = {"prompt": messages[:1], "completion": messages[1:], "trajectory": steps}
    trace = load_format(name).parse(record, Place(Path("x.jsonl"), 1))
    assert isinstance(trace, Trace)
    (item,) = branch_items(trace, renderer.tokenizer)
    assert isinstance(item, RecordedBranch)
    recorded = attribute_recorded(item, renderer)
    newline = np.flatnonzero(np.array(owners) == NEWLINE)
    for i in newline.tolist():
        owners[i] = int(recorded.tokens.message_indices[i])
        assert owners[i] in (-1, owners[i - 1], owners[i + 1])
    return recorded, owners


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("thinks", [True, False])
def test_every_opener_is_the_answers(renderer: Renderer, name: str, thinks: bool) -> None:
    messages = dialogue(3, thinks=thinks)
    (tokens, status), owners = attributed(renderer, name, messages, pieces_of(messages))
    assert status is None
    assert tokens.message_indices.tolist() == owners
    text = "".join(
        renderer.tokenizer.hf.decode(tokens.token_ids[tokens.is_content & (tokens.message_indices % 2 == 0)])
    )
    assert text == "Question 0?Question 1?Question 2?"


@pytest.mark.parametrize("name", FORMATS)
def test_an_opener_with_an_empty_think_block_is_the_answers(renderer: Renderer, name: str) -> None:
    messages = dialogue(3, thinks=False)
    pieces = pieces_of(messages, HEADER + "<think>\n\n</think>\n\n")
    (tokens, status), owners = attributed(renderer, name, messages, pieces)
    assert status is None
    assert tokens.message_indices.tolist() == owners


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_question_known", [True, False])
def test_an_opener_of_another_template_is_never_the_users(
    renderer: Renderer, name: str, is_question_known: bool
) -> None:
    messages = dialogue(3, thinks=True)
    pieces = pieces_of(messages, "<|im_start|>model\n")
    if not is_question_known:
        pieces = [(text.replace("user\n", "human\n"), *rest) for text, *rest in pieces]
    (tokens, status), owners = attributed(renderer, name, messages, pieces)
    assert status == (None if is_question_known else "unaligned")
    known = tokens.message_indices >= 0
    assert tokens.message_indices[known].tolist() == np.array(owners)[known].tolist()
    assert known[tokens.sampled_mask == 1].all()


def holed(pieces: Pieces, *, untrained: set[int], hole: tuple[str, str, str]) -> Pieces:
    """The same with some messages not trained on, and without the middle of the given text."""
    found: Pieces = []
    for text, owner, sampled in pieces:
        if sampled and text == "".join(hole):
            found += [(hole[0], owner, True), (hole[1], owner, False), (hole[2], owner, True)]
        else:
            found.append((text, owner, sampled and owner not in untrained))
    return found


@pytest.mark.parametrize("name", ["tokens", "atropos"])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("holed_answer", [0, 1])
def test_as_many_runs_as_answers_are_not_taken_for_them(
    renderer: Renderer, name: str, thinks: bool, holed_answer: int
) -> None:
    messages = dialogue(2, thinks=thinks)
    thought = f"<think>\nthought {holed_answer}\n</think>\n\n" if thinks else ""
    hole = (f"{thought}Answer", f" {holed_answer}", "<|im_end|>")
    pieces = holed(pieces_of(messages), untrained={1, 3} - {2 * holed_answer + 1}, hole=hole)
    (tokens, status), owners = attributed(renderer, name, messages, pieces)
    assert tokens.sampled_mask.tolist().count(1) > 0
    known = tokens.message_indices >= 0
    assert tokens.message_indices[known].tolist() == np.array(owners)[known].tolist()
    assert status == (None if known.all() else "unaligned")
    assert known.mean() > 0.6


@pytest.mark.parametrize("name", ["tokens", "atropos"])
def test_the_end_of_an_answer_that_was_not_trained_is_not_the_users(renderer: Renderer, name: str) -> None:
    messages = [*dialogue(2, thinks=True)]
    pieces = pieces_of(messages)
    pieces[2:3] = [("<think>\nthought 0\n</think>\n\n", 1, True), ("Answer 0<|im_end|>", 1, False)]
    (tokens, status), owners = attributed(renderer, name, messages, pieces)
    known = tokens.message_indices >= 0
    assert tokens.message_indices[known].tolist() == np.array(owners)[known].tolist()
    assert status == (None if known.all() else "unaligned")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("content", ["<search>Rome</search>", "<", "<thin", "<|im_start"])
def test_an_answer_that_begins_as_the_templates_think_block_is_content(
    renderer: Renderer, name: str, content: str
) -> None:
    messages = dialogue(2, thinks=False)
    for i in (1, 3):
        messages[i]["content"] = content
    (tokens, status), owners = attributed(renderer, name, messages, pieces_of(messages))
    assert status is None
    assert tokens.message_indices.tolist() == owners
    for i in (1, 3):
        own = tokens.token_ids[tokens.is_content & (tokens.message_indices == i)]
        assert renderer.tokenizer.hf.decode(own) == content
    spelled = tokens.is_content & (tokens.message_indices == 3)
    assert {tokens.sources[code] for code in tokens.source_codes[spelled].tolist()} == {"content"}
