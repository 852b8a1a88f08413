"""Recorded token ids: kept as they are, attributed by the template where it has the same text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering import ChatTokenizer, Conversation, ConversationError, Renderer
from tokscore.rendering.conversations.trace import Node, NodeTokens, Trace, linear
from tokscore.rendering.drift import DriftKind, find_drift
from tokscore.rendering.recorded_ids.attribute import (
    CONTENT_UNUSED_STATUS,
    Recorded,
    attribute_recorded,
    branch_items,
)
from tokscore.rendering.recorded_ids.branch import RecordedBranch

USER = {"role": "user", "content": "Weather in Rome?"}
CALL = {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "Sunny, 21 degrees", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is sunny."},
]


@pytest.fixture(scope="module")
def renderer(qwen3: Path, assets: Path) -> Renderer:
    template = (assets / "trl" / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    return Renderer(ChatTokenizer(str(qwen3), template=template))


def ids_of(renderer: Renderer, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    return renderer.tokenizer.token_ids([text])[0]


def node(renderer: Renderer, text: str, *messages: dict[str, Any], sampled: str = "") -> Node:
    """A node of `text`, of which the ending `sampled` was generated."""
    assert text.endswith(sampled)
    parts = [ids_of(renderer, part) for part in (text[: len(text) - len(sampled)], sampled) if part]
    ids = np.concatenate(parts)
    mask = np.zeros(len(ids), np.int8)
    if sampled:
        mask[len(ids) - len(parts[-1]) :] = 1
    return Node(-1, messages, bool(sampled), NodeTokens(ids, mask))


def branch(nodes: Sequence[Node]) -> RecordedBranch:
    nodes = linear(nodes)
    return RecordedBranch(nodes, Conversation([message for each in nodes for message in each.messages]))


def by_rendering(renderer: Renderer, messages: Sequence[dict[str, Any]]) -> RecordedBranch:
    """The template's own ids, recorded by message as the rendering has them."""
    rendered = renderer.render(Conversation(list(messages)))
    nodes = []
    for i, message in enumerate(messages):
        owned = rendered.message_indices == i
        assert owned.any()
        tokens = NodeTokens(rendered.token_ids[owned], rendered.sampled_mask[owned])
        nodes.append(Node(-1, (message,), message["role"] == "assistant", tokens))
    return branch(nodes)


def attributed(renderer: Renderer, recorded: RecordedBranch) -> Recorded:
    return attribute_recorded(recorded, renderer)


def test_contents_that_only_some_nodes_record_are_said_to_go_unused(renderer: Renderer) -> None:
    nodes = list(by_rendering(renderer, MESSAGES).nodes)
    first = nodes[0].tokens
    assert first is not None
    nodes[0] = nodes[0]._replace(tokens=first._replace(is_content=np.ones(len(first.token_ids), bool)))
    tokens, status = attributed(renderer, branch(nodes))
    assert (status, tokens.recorded_is_content) == (CONTENT_UNUSED_STATUS, None)


def test_the_templates_own_ids_are_attributed_as_rendering_does(renderer: Renderer) -> None:
    rendered = renderer.render(Conversation(MESSAGES))
    tokens, status = attributed(renderer, by_rendering(renderer, MESSAGES))
    assert status is None
    np.testing.assert_array_equal(tokens.token_ids, rendered.token_ids)
    np.testing.assert_array_equal(tokens.message_indices, rendered.message_indices)
    np.testing.assert_array_equal(tokens.sampled_mask, rendered.sampled_mask)
    np.testing.assert_array_equal(tokens.is_content, rendered.is_content)
    sources = [tokens.sources[code] for code in tokens.source_codes]
    assert sources == [rendered.sources[code] for code in rendered.source_codes]
    assert all(MessageFlag.RECORDED in facts.flags for facts in tokens.messages)
    assert tokens.message_tool_names == rendered.message_tool_names


def test_a_prompt_of_several_messages_is_divided_by_the_template(renderer: Renderer) -> None:
    rendered = renderer.render(Conversation(MESSAGES))
    start = int(np.flatnonzero(rendered.message_indices == 4)[0]) + 3  # behind <|im_start|>assistant\n
    prompt = NodeTokens(rendered.token_ids[:start], np.zeros(start, np.int8))
    answer_ids = rendered.token_ids[start:-1]
    answer = NodeTokens(answer_ids, np.ones(len(answer_ids), np.int8))
    recorded = branch([Node(-1, MESSAGES[:4], False, prompt), Node(0, MESSAGES[4:], True, answer)])
    tokens, status = attributed(renderer, recorded)
    assert status is None
    np.testing.assert_array_equal(tokens.message_indices, rendered.message_indices[:-1])
    np.testing.assert_array_equal(tokens.is_content, rendered.is_content[:-1])


def test_other_ids_for_the_same_text_are_kept_and_attributed(renderer: Renderer) -> None:
    whole, split = ids_of(renderer, "sunny"), [*ids_of(renderer, "sun"), *ids_of(renderer, "ny")]
    assert list(whole) != split
    header = node(renderer, "<|im_start|>user\nHi<|im_end|>\n", {"role": "user", "content": "Hi"})
    opener = ids_of(renderer, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    stop = ids_of(renderer, "<|im_end|>")
    ids = np.concatenate([opener, np.array(split, np.int32), stop])
    mask = np.zeros(len(ids), np.int8)
    mask[len(opener) :] = 1
    answer = Node(-1, ({"role": "assistant", "content": "sunny"},), True, NodeTokens(ids, mask))
    recorded = branch([header, answer])
    tokens, _ = attributed(renderer, recorded)
    assert tokens.token_ids.tolist() == [*header.tokens.token_ids, *ids] if header.tokens else False
    contents = tokens.token_ids[tokens.is_content & (tokens.message_indices == 1)]
    assert contents.tolist() == split
    found = find_drift(recorded, renderer)
    assert found.kind is DriftKind.BOUNDARY_MERGE
    assert found.position == len(tokens) - len(split) - 1
    assert found.n_after == len(split) + 1


def test_text_that_the_template_prints_otherwise_keeps_the_message_of_its_node(renderer: Renderer) -> None:
    question = node(renderer, "<|im_start|>human\nHi<|im_end|>\n", {"role": "user", "content": "Hi"})
    answer = node(
        renderer,
        "<|im_start|>model\nYo<|im_end|>\n",
        {"role": "assistant", "content": "Yo"},
        sampled="Yo<|im_end|>\n",
    )
    tokens, _ = attributed(renderer, branch([question, answer]))
    n = len(question.tokens.token_ids) if question.tokens else 0
    assert tokens.message_indices.tolist() == [0] * n + [1] * (len(tokens) - n)
    texts = [
        "".join(
            renderer.tokenizer.hf.decode(tokens.token_ids[tokens.is_content & (tokens.message_indices == i)])
        )
        for i in (0, 1)
    ]
    assert texts == ["Hi", "Yo"]


def test_a_prompt_that_cannot_be_aligned_belongs_to_nobody_and_says_so(renderer: Renderer) -> None:
    prompt = node(renderer, "### Question\nHi\n### Answer\n", *MESSAGES[:2])
    answer = node(renderer, "Yo", {"role": "assistant", "content": "Yo"}, sampled="Yo")
    tokens, status = attributed(renderer, branch([prompt, answer]))
    assert status == "unaligned"
    n = len(tokens) - 1
    assert tokens.message_indices.tolist() == [-1] * n + [2]
    assert tokens.sampled_mask.tolist() == [0] * n + [1]


def test_recorded_masks_and_logprobs_win(renderer: Renderer) -> None:
    recorded = by_rendering(renderer, MESSAGES)
    changed = []
    for each in recorded.nodes:
        assert each.tokens is not None
        n = len(each.tokens.token_ids)
        logprobs = np.linspace(-2, -1, n, dtype=np.float32) if each.is_sampled else None
        tokens = each.tokens._replace(sampled_mask=np.full(n, -1, np.int8), logprobs=logprobs)
        changed.append(each._replace(tokens=tokens))
    tokens, _ = attributed(renderer, branch(changed))
    assert (tokens.sampled_mask == -1).all()
    assert all(facts.unknown_reason for facts in tokens.messages)
    assert tokens.recorded_logprobs is not None
    is_answer = np.isin(tokens.message_indices, [2, 4])
    np.testing.assert_array_equal(np.isnan(tokens.recorded_logprobs), ~is_answer)


def test_an_id_beyond_the_vocabulary_is_an_error(renderer: Renderer) -> None:
    bad = Node(-1, (USER,), False, NodeTokens(np.array([2**30], np.int32), np.zeros(1, np.int8)))
    with pytest.raises(ConversationError, match="is the token id 1073741824; expected 0 to"):
        attributed(renderer, branch([bad]))


def test_ids_on_some_nodes_are_an_error(renderer: Renderer) -> None:
    trace = Trace(linear([node(renderer, "Hi", USER), Node(-1, ({"role": "assistant", "content": "a"},))]))
    with pytest.raises(ConversationError, match="has ids on 1 of the 2 nodes"):
        branch_items(trace, renderer.tokenizer)


def test_branches_without_ids_become_conversations(renderer: Renderer) -> None:
    nodes = [
        Node(-1, (USER,)),
        Node(0, ({"role": "assistant", "content": "good"},), True),
        Node(0, ({"role": "assistant", "content": "bad"},), True),
    ]
    items = branch_items(Trace(nodes), renderer.tokenizer)
    assert [isinstance(item, Conversation) for item in items] == [True, True]
    assert [item.messages[-1]["content"] for item in items if isinstance(item, Conversation)] == [
        "good",
        "bad",
    ]


def test_printed_text_is_tokenised_as_it_is(renderer: Renderer) -> None:
    prompt, answer = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Yo<|im_end|>"
    nodes = linear(
        [
            Node(-1, ({"role": "user", "content": prompt},)),
            Node(-1, ({"role": "assistant", "content": answer},), True),
        ]
    )
    (item,) = branch_items(Trace(nodes, is_text=True), renderer.tokenizer)
    assert isinstance(item, RecordedBranch)
    tokens, status = attributed(renderer, item)
    assert status == "rendered_text"
    n = len(ids_of(renderer, prompt))
    assert tokens.token_ids.tolist() == [*ids_of(renderer, prompt), *ids_of(renderer, answer)]
    assert tokens.message_indices.tolist() == [0] * n + [1] * 2
    assert tokens.sampled_mask.tolist() == [0] * n + [1] * 2


def test_answers_that_the_record_says_were_not_generated_are_not_sampled(renderer: Renderer) -> None:
    said = [MESSAGES[1], {"role": "assistant", "content": "Sun."}, MESSAGES[1], MESSAGES[4]]
    nodes = linear([Node(-1, (message,), i == 3) for i, message in enumerate(said)])
    (item,) = branch_items(Trace(nodes), renderer.tokenizer)
    assert isinstance(item, Conversation)
    tokens, whole = renderer.render(item), renderer.render(Conversation(said))
    kept = np.where(whole.message_indices == 1, 0, whole.sampled_mask)
    assert (whole.sampled_mask != kept).any()
    np.testing.assert_array_equal(tokens.sampled_mask, kept)


@pytest.mark.parametrize("content", ["user", "start", "im", "system", "X"])
def test_the_content_is_found_behind_a_header_of_the_same_words(renderer: Renderer, content: str) -> None:
    before = "<|im_start|>system\nX is the user's<|im_end|>\n<|im_start|>user\n"
    said = {"role": "user", "content": content}
    question = node(renderer, f"{before}{content}<|im_end|>\n", said)
    answer = {"role": "assistant", "content": "Z", "reasoning_content": "Z or Y"}
    thought = "<think>\nZ or Y\n</think>\n\nZ<|im_end|>\n"
    spoken = node(renderer, f"<|im_start|>assistant\n{thought}", answer, sampled=thought)
    again = node(renderer, f"<|im_start|>human\n{content}<|im_end|>\n", said)
    tokens, _ = attributed(renderer, branch([question, spoken, again]))
    decode = renderer.tokenizer.hf.decode
    asked = [decode(tokens.token_ids[tokens.is_content & (tokens.message_indices == i)]) for i in (0, 2)]
    assert asked == [content, content]
    places = np.flatnonzero(tokens.is_content & (tokens.message_indices == 0))
    n_before = len(ids_of(renderer, before))
    assert places.tolist() == list(range(n_before, n_before + len(places)))


class TestDrift:
    def test_the_templates_own_ids_do_not_drift(self, renderer: Renderer) -> None:
        found = find_drift(by_rendering(renderer, MESSAGES), renderer)
        assert (found.position, found.kind, found.n_after) == (None, None, 0)

    def test_a_record_that_ends_at_the_stop_does_not_drift(self, renderer: Renderer) -> None:
        nodes = list(by_rendering(renderer, MESSAGES).nodes)
        last = nodes[-1].tokens
        assert last is not None
        nodes[-1] = nodes[-1]._replace(tokens=NodeTokens(last.token_ids[:-1], last.sampled_mask[:-1]))
        assert find_drift(branch(nodes), renderer).kind is None

    def test_reasoning_that_the_template_drops(self, renderer: Renderer) -> None:
        question = node(renderer, "<|im_start|>user\nHi<|im_end|>\n", {"role": "user", "content": "Hi"})
        text = "<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nYo<|im_end|>\n"
        message = {"role": "assistant", "content": "Yo", "reasoning_content": "A greeting."}
        answer = node(renderer, text, message, sampled=text.removeprefix("<|im_start|>assistant\n"))
        again = node(renderer, "<|im_start|>user\nBye<|im_end|>\n", {"role": "user", "content": "Bye"})
        recorded = branch([question, answer, again])
        found = find_drift(recorded, renderer)
        assert found.kind is DriftKind.DROPPED_REASONING
        n_before = len(ids_of(renderer, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))
        n_all = sum(len(each.tokens.token_ids) for each in recorded.nodes if each.tokens is not None)
        assert (found.position, found.n_after) == (n_before, n_all - n_before)
        assert (found.message_index, found.role) == (1, "assistant")

    def test_a_tool_call_written_otherwise(self, renderer: Renderer) -> None:
        nodes = list(by_rendering(renderer, MESSAGES).nodes)
        text = renderer.tokenizer.hf.decode(nodes[2].tokens.token_ids) if nodes[2].tokens else ""
        other = text.replace('{"city": "Rome"}', '{"city":"Rome"}')
        assert other != text
        nodes[2] = node(renderer, other, MESSAGES[2], sampled=other.removeprefix("<|im_start|>assistant\n"))
        assert find_drift(branch(nodes), renderer).kind is DriftKind.TOOL_JSON

    @pytest.mark.parametrize(
        ("recorded", "kind"),
        [
            ("<|im_start|>user\n Hi<|im_end|>\n", DriftKind.WHITESPACE),
            ("<|im_start|>user\n<|endoftext|>Hi<|im_end|>\n", DriftKind.SPECIAL_TOKEN),
            ("<|im_start|>user\nHey<|im_end|>\n", DriftKind.OTHER),
        ],
    )
    def test_other_kinds(self, renderer: Renderer, recorded: str, kind: DriftKind) -> None:
        found = find_drift(branch([node(renderer, recorded, {"role": "user", "content": "Hi"})]), renderer)
        assert found.kind is kind

    @pytest.mark.parametrize(
        ("answer", "kind", "n_after"),
        [
            ("Yo \n<|im_end|>", DriftKind.WHITESPACE, 2),
            ("Yo<|endoftext|>", DriftKind.SPECIAL_TOKEN, 1),
            ("Yo", DriftKind.TRUNCATED, 0),
        ],
    )
    def test_ends_of_an_answer(self, qwen3: Path, answer: str, kind: DriftKind, n_after: int) -> None:
        template = "{% for m in messages %}{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        template += "{% if add_generation_prompt %}assistant\n{% endif %}"
        trimming = Renderer(ChatTokenizer(str(qwen3), template=template))
        said = {"role": "assistant", "content": "Yo"}
        nodes = [
            node(trimming, "user\nHi<|im_end|>\n", {"role": "user", "content": "Hi"}),
            node(trimming, f"assistant\n{answer}", said, sampled=answer),
        ]
        found = find_drift(branch(nodes), trimming)
        assert (found.kind, found.n_after) == (kind, n_after)

    def test_spaces_in_json_that_the_template_spells_itself(self, renderer: Renderer) -> None:
        nodes = list(by_rendering(renderer, MESSAGES).nodes)
        text = renderer.tokenizer.hf.decode(nodes[2].tokens.token_ids) if nodes[2].tokens else ""
        other = text.replace('"name": "weather"', '"name":"weather"')
        assert other != text
        nodes[2] = node(renderer, other, MESSAGES[2], sampled=other.removeprefix("<|im_start|>assistant\n"))
        assert find_drift(branch(nodes), renderer).kind is DriftKind.TOOL_JSON

    def test_messages_that_the_template_refuses(self, qwen3: Path) -> None:
        refusing = Renderer(ChatTokenizer(str(qwen3), template="{{ raise_exception('no') }}"))
        found = find_drift(branch([node(refusing, "Hi", {"role": "user", "content": "Hi"})]), refusing)
        assert found.kind is DriftKind.REFUSED
        assert "no" in found.rendered


def test_ids_of_messages_that_were_not_told_apart_go_to_their_messages(renderer: Renderer) -> None:
    rendered = renderer.render(Conversation(MESSAGES))
    start = int(np.flatnonzero(rendered.message_indices == 4)[0]) + 3
    mask = (np.arange(len(rendered)) >= start).astype(np.int8)
    empty = NodeTokens(np.zeros(0, np.int32), np.zeros(0, np.int8))
    nodes = [Node(-1, (message,), False, empty) for message in MESSAGES[:4]]
    answer = Node(-1, (MESSAGES[4],), True, NodeTokens(rendered.token_ids, mask))
    tokens, _ = attributed(renderer, branch([*nodes, answer]))
    np.testing.assert_array_equal(tokens.message_indices, rendered.message_indices)
    np.testing.assert_array_equal(tokens.is_content, rendered.is_content)
