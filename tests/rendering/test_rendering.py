"""Rendering with real tokenizers and templates: golden cases and known kinds of fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.dataset.tokens import message_counts, run_starts
from tokscore.rendering import ChatTokenizer, Conversation, ConversationError, RenderedTokens, Renderer
from tokscore.rendering.attribution.settings import Verify

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "render_golden.json").read_text())


@lru_cache
def load(assets: Path, tokenizer: str, template: str) -> ChatTokenizer:
    source = (assets / "trl" / "chat_templates" / template).read_text()
    return ChatTokenizer(str(assets / "tokenizers" / tokenizer), template=source)


def renderer(
    assets: Path, tokenizer: str = "qwen3", template: str = "qwen3.jinja", **settings: Any
) -> Renderer:
    return Renderer(load(assets, tokenizer, template), verify=Verify.FULL, **settings)


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def spans(tokens: RenderedTokens) -> list[tuple[int, int]]:
    counts = message_counts(tokens)
    return list(zip(counts.start.tolist(), counts.stop.tolist(), strict=True))


def sampled(tokens: RenderedTokens) -> list[int]:
    return message_counts(tokens).n_sampled.tolist()


def sampled_text(renderer: Renderer, tokens: RenderedTokens) -> str:
    return str(renderer.tokenizer.hf.decode(tokens.token_ids[tokens.sampled_mask == 1]))


def flags(tokens: RenderedTokens) -> list[Sequence[str]]:
    return [message.flags for message in tokens.messages]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["id"] for case in GOLDEN])
def test_golden_case(assets: Path, case: dict[str, Any]) -> None:
    tokenizer = case["tokenizer"].split("tokenizer-")[1].split("@")[0]
    template = case["template"].rsplit("/", 1)[1]
    rendering = renderer(assets, tokenizer, template, add_generation_prompt=case["add_generation_prompt"])
    tokens = rendering.render(Conversation(case["messages"], case["tools"]))
    assert tokens.token_ids.tolist() == case["ids"]
    assert tokens.message_indices.tolist() == case["message_index"]
    counts = message_counts(tokens)
    assert (
        np.stack([counts.start, counts.stop, counts.n_tokens], axis=1).tolist()
        == case["spans_first_end_count"]
    )
    assert counts.n_tokens.sum() + (tokens.message_indices == -1).sum() == len(tokens)


def test_generation_tags_decide_where_a_template_has_them(assets: Path) -> None:
    rendering = renderer(assets, template="qwen3_training.jinja")
    tokens = rendering.render(Conversation([user("q"), assistant("a")]))
    assert sampled_text(rendering, tokens) == "<think>\n\n</think>\n\na<|im_end|>\n"


@pytest.mark.parametrize(
    ("tokenizer", "template", "expected"),
    [
        ("qwen3", "qwen3.jinja", "<think>\n\n</think>\n\nYo<|im_end|>"),
        ("llama3_1", "llama3.jinja", "Yo<|eot_id|>"),
        ("gemma3", "gemma.jinja", "Yo<end_of_turn>"),
    ],
)
def test_the_sampled_tokens_are_the_answer_and_its_stop(
    assets: Path, tokenizer: str, template: str, expected: str
) -> None:
    rendering = renderer(assets, tokenizer, template)
    tokens = rendering.render(Conversation([user("Hi"), assistant("Yo")]))
    assert sampled_text(rendering, tokens) == expected


def test_an_assistant_message_that_is_not_printed_is_unknown(tiny_model: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% endif %}{% endfor %}"
    )
    rendering = Renderer(ChatTokenizer(str(tiny_model), template=template))
    tokens = rendering.render(Conversation([user("q"), assistant("a")]))
    assert tokens.messages[1].unknown_reason == "the template prints nothing of it"
    assert message_counts(tokens).n_tokens[1] == 0


def test_a_turn_without_a_stop_is_flagged(tiny_model: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    rendering = Renderer(ChatTokenizer(str(tiny_model), template=template))
    tokens = rendering.render(Conversation([user("q"), assistant("abc")]))
    assert "no_stop_rendered" in tokens.messages[1].flags
    assert sampled_text(rendering, tokens).strip() == "abc"


def test_spans_tile_the_tokens(assets: Path) -> None:
    for case in GOLDEN:
        if "qwen3" in case["tokenizer"]:
            tokens = renderer(assets).render(Conversation(case["messages"], case["tools"]))
            starts = run_starts(
                tokens.message_indices, tokens.source_codes, tokens.is_content, tokens.sampled_mask
            )
            assert starts[0] == 0
            assert (np.diff(starts) > 0).all()


def test_lone_surrogates_are_one_clear_error(tiny_model: Path) -> None:
    with pytest.raises(ConversationError, match="half of a character pair"):
        Renderer(ChatTokenizer(str(tiny_model))).render(Conversation([user("\ud800")]))


def test_deep_nesting_is_one_clear_error(tiny_model: Path) -> None:
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(ConversationError, match="nested too deeply"):
        Renderer(ChatTokenizer(str(tiny_model))).render(Conversation([{**user("x"), "extra": deep}]))


def test_a_difference_from_transformers_is_an_error(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ChatTokenizer(str(tiny_model))
    theirs = tokenizer.hf.apply_chat_template
    monkeypatch.setattr(
        tokenizer.hf,
        "apply_chat_template",
        lambda *a, **k: theirs(*a, **k) + "!" if not k["tokenize"] else theirs(*a, **k),
    )
    with pytest.raises(ConversationError, match="renders otherwise than in transformers from character"):
        Renderer(tokenizer).render(Conversation([user("q"), assistant("a")]))
    Renderer(tokenizer, verify=Verify.OFF).render(Conversation([user("q"), assistant("a")]))


def test_the_date_of_a_template_is_that_of_the_run(assets: Path) -> None:
    rendering = renderer(assets, "llama3_1", "llama3_2.jinja", template_time="2024-07-01T12:00")
    tokens = rendering.render(Conversation([user("Hi"), assistant("Yo")]))
    assert "Today Date: 01 Jul 2024" in rendering.tokenizer.hf.decode(tokens.token_ids)


def test_a_list_printed_as_python_is_flagged_and_not_dropped(tiny_model: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    rendering = Renderer(ChatTokenizer(str(tiny_model), template=template))
    tokens = rendering.render(Conversation([user([{"type": "text", "text": "see"}])]))
    assert flags(tokens) == [("printed_as_python",)]
    assert tokens.messages[0].n_dropped_characters == 0


@pytest.mark.parametrize(
    "mention", ["{# no {% generation %} here #}", "{% raw %}{% generation %}{% endraw %}"]
)
def test_a_mention_of_generation_tags_is_no_tag(tiny_model: Path, mention: str) -> None:
    tokenizer = ChatTokenizer(str(tiny_model))
    tokenizer.template = tokenizer.chat_template(has_tools=False) + mention
    rendering = Renderer(tokenizer)
    tokens = rendering.render(Conversation([user("q"), assistant("abc")]))
    assert sampled_text(rendering, tokens).startswith("abc<|im_end|>")
