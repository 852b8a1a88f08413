"""Attributed tokens: counts, spans and slices, by example and by law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rendering.samples import (
    CHATML_TOOLS,
    NO_TOOLS,
    REAL_TEMPLATES,
    SPECIAL,
    assistant,
    byte_renderer,
    byte_tokenizer,
    call,
    conversations,
    template_renderer,
    tool,
    user,
)
from tokscore.dataset.rows import token_table
from tokscore.dataset.schema import TOKENS
from tokscore.dataset.tokens import MessageFacts, OwnedSpan, RoleStart, Span, message_counts
from tokscore.rendering import (
    ChatTokenizer,
    Conversation,
    RenderedTokens,
    Renderer,
    UsageError,
    concatenate_slices,
    pack_conversations,
)
from tokscore.rendering.incremental.media import expand_placeholders

# Prints the system text in the last user turn.
LATE_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizers") / "chatml", SPECIAL, "<|im_end|>")


@pytest.fixture(scope="session")
def rendered(chatml: Path) -> RenderedTokens:
    """`<|im_start|>user\\né!<|im_end|>\\n<|im_start|>assistant\\nYo<|im_end|>\\n` and an opener, a byte a token."""
    renderer = template_renderer(chatml, CHATML_TOOLS.read_text()).with_generation_prompt(True)
    return renderer.render(Conversation([user("é!"), assistant("Yo")]))


def token_ids_of(n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(n, dtype=np.int32)


def made(message_indices: Sequence[int], roles: Sequence[str], sampled: Sequence[int] = ()) -> RenderedTokens:
    """Tokens with given owners; of a dataset, without text."""
    n = len(message_indices)
    indices = np.array(message_indices, np.int32)
    return RenderedTokens(
        token_ids=token_ids_of(n),
        message_indices=indices,
        sampled_mask=np.array(sampled or [0] * n, np.int8),
        is_content=indices >= 0,
        source_codes=(indices >= 0).astype(np.int16),
        sources=("template", "content"),
        messages=tuple(MessageFacts(role) for role in roles),
    )


INTERLEAVED = made(
    [-1, 1, 0, 0, 1, 2, 2, -1], ["system", "user", "assistant", "user"], [0, 0, 0, 0, 0, 1, -1, 0]
)


def test_tokens_per_message_covers_every_message_and_no_more() -> None:
    assert INTERLEAVED.tokens_per_message().tolist() == [2, 2, 2, 0]
    assert INTERLEAVED.tokens_per_message(2).tolist() == [2, 2]
    assert INTERLEAVED.tokens_per_message(9).tolist() == [2, 2, 2, 0]
    assert INTERLEAVED.tokens_per_message(-1).tolist() == []
    assert INTERLEAVED.tokens_per_message(sampled_only=True).tolist() == [0, 0, 1, 0]


def test_tokens_by_role_holds_those_of_no_message_under_none() -> None:
    assert INTERLEAVED.tokens_by_role() == {"system": 2, "user": 2, "assistant": 2, None: 2}
    assert INTERLEAVED.tokens_by_role(sampled_only=True) == {"system": 0, "user": 0, "assistant": 1, None: 0}
    assert list(INTERLEAVED.tokens_by_role())[-1] is None


def test_message_spans_are_outer_and_none_where_nothing_was_rendered() -> None:
    assert INTERLEAVED.message_token_spans() == (Span(2, 4), Span(1, 5), Span(5, 7), None)


def test_role_spans_are_the_runs_of_one_owner() -> None:
    assert INTERLEAVED.role_token_spans() == (
        OwnedSpan(0, 1, -1, None),
        OwnedSpan(1, 2, 1, "user"),
        OwnedSpan(2, 4, 0, "system"),
        OwnedSpan(4, 5, 1, "user"),
        OwnedSpan(5, 7, 2, "assistant"),
        OwnedSpan(7, 8, -1, None),
    )


def test_neighbouring_messages_of_one_role_have_a_span_each() -> None:
    tokens = made([0, 0, 1, 1], ["user", "user"])
    assert tokens.role_token_spans() == (OwnedSpan(0, 2, 0, "user"), OwnedSpan(2, 4, 1, "user"))
    assert tokens.content_token_spans() == tokens.role_token_spans()


def test_role_starts_follow_the_tokens_not_the_messages() -> None:
    assert INTERLEAVED.role_starts() == (
        RoleStart(1, 1, "user"),
        RoleStart(2, 0, "system"),
        RoleStart(5, 2, "assistant"),
    )


def test_starts_are_found_by_role() -> None:
    tokens = made([0, 1, 1, 2, 3], ["user", "assistant", "user", "assistant"])
    assert tokens.last_start("assistant") == 4
    assert tokens.last_start("tool") is None
    assert tokens.next_start("user", -1) == 0
    assert tokens.next_start("user", 0) == 3
    assert tokens.next_start("user", 3) is None


def test_characters_and_bytes_of_a_token(rendered: RenderedTokens) -> None:
    text = "<|im_start|>user\né!<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.text == text
    assert rendered.char_span(0) == Span(0, len("<|im_start|>"))
    first, second, mark = (text.index("é") - len("<|im_start|>") + 1 + k for k in range(3))
    assert rendered.char_span(first) == rendered.char_span(second) == Span(text.index("é"), text.index("!"))
    start, stop = rendered.byte_span(first)
    assert text.encode()[start:stop] == "é".encode()
    start, stop = rendered.byte_span(mark)
    assert text.encode()[start:stop] == b"!"
    with pytest.raises(IndexError):
        rendered.char_span(len(rendered))


def test_content_spans_hold_the_bodies(rendered: RenderedTokens) -> None:
    spans = rendered.content_token_spans()
    assert [(span.message_index, span.role) for span in spans] == [(0, "user"), (1, "assistant")]
    texts = [
        (rendered.text or "")[rendered.char_span(span.start).start : rendered.char_span(span.stop - 1).stop]
        for span in spans
    ]
    assert texts == ["é!", "Yo"]


def test_tokens_of_a_dataset_have_no_characters() -> None:
    with pytest.raises(UsageError, match="these tokens have no text"):
        INTERLEAVED.char_span(0)
    with pytest.raises(UsageError, match="these tokens have no text"):
        INTERLEAVED.byte_span(0)


def test_roles_and_tool_names_are_per_message(chatml: Path) -> None:
    messages = [user("q"), assistant("", tool_calls=[call({"p": 1})]), {**tool("r"), "name": None}]
    tokens = template_renderer(chatml, CHATML_TOOLS.read_text()).render(Conversation(messages))
    assert tokens.message_roles == ("user", "assistant", "tool")
    assert tokens.message_tool_names == (None, None, "f")


def test_tokens_are_read_only(rendered: RenderedTokens) -> None:
    with pytest.raises(ValueError, match="read-only"):
        rendered.token_ids[0] = 1
    with pytest.raises(FrozenInstanceError):
        rendered.text = ""  # type: ignore[misc]
    mine = np.zeros(2, np.int32)
    replace(INTERLEAVED[:2], token_ids=mine)
    mine[0] = 1  # the caller's own array stays writable


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is_content has shape \(1,\) for 8 tokens"):
        replace(INTERLEAVED, is_content=np.zeros(1, bool))


def test_slices_keep_messages_and_characters(rendered: RenderedTokens) -> None:
    part = rendered[9:14]
    assert part.token_ids.tolist() == rendered.token_ids[9:14].tolist()
    assert part.message_indices.tolist() == rendered.message_indices[9:14].tolist()
    assert part.messages == rendered.messages
    assert [part.char_span(i) for i in range(5)] == [rendered.char_span(i) for i in range(9, 14)]
    assert len(rendered[-3:]) == 3
    with pytest.raises(TypeError, match="step of 1"):
        rendered[::-1]
    with pytest.raises(TypeError, match="step of 1"):
        rendered[0]  # type: ignore[index]


def test_slices_of_different_conversations_are_not_concatenated(rendered: RenderedTokens) -> None:
    with pytest.raises(UsageError, match="slice 1 belongs to another conversation"):
        concatenate_slices([rendered[:2], INTERLEAVED[2:]])
    with pytest.raises(UsageError, match="no slices"):
        concatenate_slices([])


def test_packed_conversations_count_their_messages_on(rendered: RenderedTokens, chatml: Path) -> None:
    renderer = template_renderer(chatml, CHATML_TOOLS.read_text())
    other = renderer.render(Conversation([user("a"), assistant("b", reasoning_content="r"), user("c")]))
    packed = pack_conversations([rendered, other])
    n = len(rendered)
    assert packed.token_ids.tolist() == [*rendered.token_ids.tolist(), *other.token_ids.tolist()]
    assert packed.message_roles == ("user", "assistant", "user", "assistant", "user")
    assert packed.message_indices[:n].tolist() == rendered.message_indices.tolist()
    assert packed.message_indices[n:].tolist() == (other.message_indices + 2).tolist()
    assert [packed.sources[code] for code in packed.source_codes[n:]] == [
        other.sources[code] for code in other.source_codes
    ]
    assert packed.text == (rendered.text or "") + (other.text or "")
    start, stop = packed.char_span(n)
    assert packed.text[start:stop] == "<|im_start|>"
    without = pack_conversations([INTERLEAVED, rendered])
    assert without.text is without.char_starts is None
    assert without.message_indices[-1] == -1
    with pytest.raises(UsageError, match="no conversations"):
        pack_conversations([])


def test_a_table_has_one_row_per_token(rendered: RenderedTokens) -> None:
    table = token_table(rendered, "greeting")
    assert table.schema == TOKENS
    assert table["conversation_id"].unique().to_pylist() == ["greeting"]
    assert table["position"].to_pylist() == list(range(len(rendered)))
    bare = token_table(rendered)
    assert bare.schema == pa.schema(list(TOKENS)[2:])
    assert bare["role"].to_pylist()[-1] is None
    assert token_table(INTERLEAVED)["is_sampled"].to_pylist()[5:7] == [True, None]


def test_an_image_placeholder_expands_inside_its_message(qwen3: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    )
    renderer = template_renderer(qwen3, template)
    content = [{"type": "text", "text": "look at this one here:"}, {"type": "image"}]
    tokens = renderer.render(Conversation([user(content), assistant("A cat.")]))
    image = renderer.tokenizer.hf.convert_tokens_to_ids("<|image_pad|>")
    offset = tokens.token_ids.tolist().index(image)
    assert offset == 9
    expanded = expand_placeholders(tokens, image, [52])
    assert len(expanded) == len(expanded.sampled_mask) == len(tokens) + 51
    media = expanded[offset : offset + 52]
    assert set(media.token_ids.tolist()) == {image}
    assert set(media.message_indices.tolist()) == {0}
    assert set(media.sampled_mask.tolist()) == {0}
    assert media.is_content.all()
    assert expanded[:offset] == replace(tokens[:offset], sources=expanded.sources)
    assert expanded[offset + 52 :] == replace(tokens[offset + 1 :], sources=expanded.sources)
    with pytest.raises(UsageError, match="2 media were given for 1 placeholders"):
        expand_placeholders(tokens, image, [3, 4])
    with pytest.raises(UsageError, match="takes 0 ids"):
        expand_placeholders(tokens, image, [0])


def check_laws(renderer: Renderer, conversation: Conversation, cuts: Sequence[float]) -> None:
    tokens = renderer.render(conversation)
    assert renderer.render(conversation) == tokens
    check_counts(tokens)
    check_spans(tokens)
    check_sampled(tokens, renderer.tokenizer)
    bounds = [0, *sorted(int(cut * len(tokens)) for cut in cuts), len(tokens)]
    slices = [tokens[start:stop] for start, stop in pairwise(bounds)]
    assert concatenate_slices(slices) == tokens


def check_counts(tokens: RenderedTokens) -> None:
    n_unowned = int((tokens.message_indices == -1).sum())
    assert tokens.tokens_per_message().sum() + n_unowned == len(tokens)
    assert sum(tokens.tokens_by_role().values()) == len(tokens)
    assert tokens.tokens_by_role()[None] == n_unowned
    n_sampled = int((tokens.sampled_mask == 1).sum())
    assert sum(tokens.tokens_by_role(sampled_only=True).values()) == n_sampled
    assert len(tokens.tokens_per_message()) == len(tokens.messages)


def check_spans(tokens: RenderedTokens) -> None:
    spans = tokens.role_token_spans()
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == len(tokens)
    assert all(span.start < span.stop for span in spans)
    for span in spans:
        assert set(tokens.message_indices[span.start : span.stop].tolist()) == {span.message_index}
    contents = tokens.content_token_spans()
    assert all(a.stop <= b.start for a, b in pairwise(contents))
    assert sum(span.stop - span.start for span in contents) == tokens.is_content.sum()
    counts = message_counts(tokens)
    for i, outer in enumerate(tokens.message_token_spans()):
        assert (outer is None) == (counts.n_tokens[i] == 0)
        if outer is not None:
            assert outer.stop - outer.start >= counts.n_tokens[i]
    starts = tokens.role_starts()
    assert list(starts) == sorted(starts)
    assert tokens.text is not None
    for i in range(len(tokens)):
        start, stop = tokens.char_span(i)
        assert 0 <= start <= stop <= len(tokens.text)
        first, last = tokens.byte_span(i)
        assert tokens.text.encode()[first:last] == tokens.text[start:stop].encode()


def check_sampled(tokens: RenderedTokens, tokenizer: ChatTokenizer) -> None:
    """A sampled token is of an assistant message, or it is the stop that ends one."""
    for i in np.flatnonzero(tokens.sampled_mask == 1).tolist():
        owner = tokens.message_indices[i]
        if owner >= 0 and tokens.messages[owner].role == "assistant":
            continue
        assert int(tokens.token_ids[i]) in tokenizer.eos_ids
        before = tokens.message_indices[i - 1]
        assert before >= 0
        assert tokens.messages[before].role == "assistant"
    for i in np.flatnonzero(tokens.sampled_mask == -1).tolist():
        assert tokens.messages[tokens.message_indices[i]].unknown_reason is not None


CUTS = st.lists(st.floats(0, 1), max_size=4)


@pytest.mark.parametrize(
    "template", [CHATML_TOOLS.read_text(), LATE_SYSTEM], ids=["chatml_tools", "late_system"]
)
@settings(max_examples=60, derandomize=True, deadline=None)
@given(messages=conversations(), cuts=CUTS, opener=st.booleans())
def test_laws_hold_for_any_conversation(
    chatml: Path, template: str, messages: list[dict[str, Any]], cuts: list[float], opener: bool
) -> None:
    renderer = template_renderer(chatml, template).with_generation_prompt(opener)
    check_laws(renderer, Conversation(messages), cuts)


@pytest.fixture(scope="session")
def load(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Renderer]:
    """A real template with a byte tokenizer that has its control tokens."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return lambda template: byte_renderer(folder, assets, template)


@pytest.mark.parametrize("template", REAL_TEMPLATES)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(data=st.data(), cuts=CUTS, opener=st.booleans())
@pytest.mark.slow
def test_laws_hold_for_real_templates(
    load: Callable[[str], Renderer], template: str, data: st.DataObject, cuts: list[float], opener: bool
) -> None:
    messages = data.draw(conversations(has_tools=template not in NO_TOOLS))
    check_laws(load(template).with_generation_prompt(opener), Conversation(messages), cuts)
