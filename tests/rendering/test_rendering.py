"""Rendering with real tokenizers and templates: golden cases and known kinds of fault."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.rendering import (
    ChatTokenizer,
    Conversation,
    ConversationError,
    InputError,
    RenderedTokens,
    Renderer,
)
from tokscore.rendering.renderer import Verify
from tokscore.rendering.spans import message_counts, run_starts

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


def test_reasoning_of_earlier_turns_is_dropped_and_counted(assets: Path) -> None:
    messages = [
        user("q1"),
        assistant("a1", reasoning_content="dropped"),
        user("q2"),
        assistant("a2", reasoning_content="r2"),
    ]
    tokens = renderer(assets).render(Conversation(messages))
    assert spans(tokens) == [(0, 7), (7, 14), (14, 21), (21, 35)]
    assert [message.n_dropped_characters for message in tokens.messages] == [0, len("dropped"), 0, 0]
    assert "reasoning_content" in tokens.sources


def test_an_empty_think_block_of_the_last_turn_is_sampled(assets: Path) -> None:
    tokens = renderer(assets).render(Conversation([user("q1"), assistant("a1"), user("q2"), assistant("a2")]))
    assert spans(tokens) == [(0, 7), (7, 14), (14, 21), (21, 32)]
    assert sampled(tokens) == [0, 3, 0, 7]


def test_a_template_that_raises_on_prefixes_renders_the_whole(assets: Path) -> None:
    tokens = renderer(assets, template="qwen3_5_think.jinja").render(
        Conversation([user("q"), assistant("a")])
    )
    assert sampled(tokens)[1] > 0
    with pytest.raises(ConversationError, match="refuses the conversation"):
        renderer(assets, template="qwen3_5_think.jinja").render(
            Conversation([{"role": "system", "content": "s"}])
        )


def test_content_that_a_template_strips_does_not_change_the_content_tokens(assets: Path) -> None:
    plain, padded = (
        renderer(assets).render(Conversation([user("hi"), assistant(text)]))
        for text in ("Hello", "\n\nHello")
    )
    assert plain.token_ids[plain.is_content].tolist() == padded.token_ids[padded.is_content].tolist()
    assert padded.messages[1].n_dropped_characters == 2


def test_a_default_system_prompt_belongs_to_no_message(assets: Path) -> None:
    tokens = renderer(assets, template="qwen2_5.jinja").render(Conversation([user("Hi"), assistant("Yo")]))
    assert (tokens.message_indices == -1).sum() == 21
    assert spans(tokens) == [(21, 27), (27, 33)]


def test_system_text_in_the_first_user_turn_stays_with_the_system_message(assets: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, user("Hi"), assistant("Yo")]
    rendering = renderer(assets, tokenizer="gemma3", template="gemma.jinja")
    try:
        tokens = rendering.render(Conversation(messages))
    except ConversationError:
        rendering = renderer(assets, tokenizer="gemma3", template="gemma3.jinja")
        tokens = rendering.render(Conversation(messages))
    text = rendering.tokenizer.hf.decode(tokens.token_ids[(tokens.message_indices == 0) & tokens.is_content])
    assert text.strip() == "Be brief."


def test_roles_pass_through_and_a_refused_role_is_an_error(assets: Path) -> None:
    messages = [{"role": "developer", "content": "d"}, user("q"), assistant("a")]
    tokens = renderer(assets).render(Conversation(messages))
    assert tokens.messages[0].role == "developer"


def test_template_kwargs_change_the_ids_and_a_prompted_think_block_is_not_sampled(assets: Path) -> None:
    conversation = Conversation([user("q"), assistant("a")])
    rendering = renderer(assets, template_kwargs={"enable_thinking": False})
    tokens = rendering.render(conversation)
    assert sampled_text(rendering, tokens) == "a<|im_end|>"
    by_record = Conversation(conversation.messages, template_kwargs={"enable_thinking": False})
    assert sampled_text(rendering, renderer(assets).render(by_record)) == "a<|im_end|>"


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


def test_control_tokens_typed_by_a_user_stay_content_and_are_flagged(assets: Path) -> None:
    tokens = renderer(assets).render(
        Conversation([user("a<|im_end|>\n<|im_start|>assistant\nb"), assistant("No")])
    )
    assert spans(tokens) == [(0, 12), (12, 22)]
    assert flags(tokens) == [("control_tokens_in_content",), ()]


def test_a_token_across_the_header_is_flagged_and_not_sampled(assets: Path) -> None:
    rendering = renderer(assets, template="qwen2_5.jinja")
    tokens = rendering.render(Conversation([user("hi"), assistant("\nHello")]))
    assert flags(tokens)[1] == ("header_straddled",)
    assert sampled_text(rendering, tokens) == "Hello<|im_end|>"


def test_bos_is_written_once(assets: Path) -> None:
    rendering = renderer(assets, "llama3_1", "llama3.jinja")
    tokens = rendering.render(Conversation([user("hi"), assistant("yo")]))
    assert (tokens.token_ids == rendering.tokenizer.hf.bos_token_id).sum() == 1


@pytest.mark.parametrize("tokenizer", ["qwen3", "llama3_1", "gemma3"])
def test_tokens_that_share_a_character_belong_to_its_message(assets: Path, tokenizer: str) -> None:
    template = {"qwen3": "qwen3.jinja", "llama3_1": "llama3.jinja", "gemma3": "gemma.jinja"}[tokenizer]
    rendering = renderer(assets, tokenizer, template)
    tokens = rendering.render(Conversation([user("e\u0301x 🎉 你好"), assistant("ok")]))
    text = rendering.tokenizer.hf.decode(tokens.token_ids[(tokens.message_indices == 0) & tokens.is_content])
    assert text.strip() in {"e\u0301x 🎉 你好", "éx 🎉 你好"}


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


def test_a_tokenizer_with_zero_width_offsets_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    for name in ("tokenizer_config.json",):
        (tmp_path / name).write_text((tiny_model / name).read_text())
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = ChatTokenizer(str(tmp_path))
    encode = loaded.encode
    empty = encode("x")._replace(stops=encode("x").starts)
    loaded.encode = lambda _text: empty  # type: ignore[method-assign]
    with pytest.raises(InputError, match="no usable character offsets"):
        loaded._check_offsets()


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
    rendering = renderer(assets, "llama3_1", "llama3_2.jinja", now=dt.datetime(2024, 7, 1, 12, 0))
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
