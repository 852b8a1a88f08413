"""Kinds of fault that tools of this field really had, each as a small conversation and the right value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.rendering.attribution.test_sampled_truth import sampled_texts
from tokscore.analytics.trajectories.counts import branch_counts, trace_counts
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.tokens import FailedConversation, message_counts
from tokscore.rendering import Conversation, ConversationError, RenderedTokens, Renderer
from tokscore.rendering.conversations.trace import Node, NodeTokens, Trace, Usage, linear
from tokscore.rendering.inputs import open_source
from tokscore.rendering.reading.formats import load_format, parse_record
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.recorded_ids.attribute import attribute_recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch

from .families import Families
from .shapes import TOOLS, assistant, call, system, tool, user

PLACE = Place(Path("input.jsonl"), 1)
QUESTION = [user("q1"), assistant("a1"), user("q2"), assistant("a2")]


def spans(tokens: RenderedTokens) -> list[tuple[int, int]]:
    """Outer span of each message."""
    counts = message_counts(tokens)
    return list(zip(counts.start.tolist(), counts.stop.tolist(), strict=True))


def flags(tokens: RenderedTokens) -> list[tuple[str, ...]]:
    return [message.flags for message in tokens.messages]


def content_text(renderer: Renderer, tokens: RenderedTokens, message: int) -> str:
    chosen = (tokens.message_indices == message) & tokens.is_content
    return str(renderer.tokenizer.hf.decode(tokens.token_ids[chosen]))


def test_reasoning_of_earlier_turns_is_dropped_and_counted(families: Families) -> None:
    messages = [user("q1"), assistant("a1", reasoning_content="dropped")]
    messages += [user("q2"), assistant("a2", reasoning_content="r2")]
    tokens = families.renderer("qwen3").render(Conversation(messages))
    assert len(tokens) == 35
    assert spans(tokens) == [(0, 7), (7, 14), (14, 21), (21, 35)]
    assert [message.n_dropped_characters for message in tokens.messages] == [0, len("dropped"), 0, 0]
    assert set(tokens.source_codes[7:14].tolist()) <= {
        tokens.sources.index(name) for name in ("template", "role", "content")
    }


def test_an_empty_think_block_of_the_last_turn_is_sampled(families: Families) -> None:
    tokens = families.renderer("qwen3").render(Conversation(QUESTION))
    counts = message_counts(tokens)
    assert spans(tokens) == [(0, 7), (7, 14), (14, 21), (21, 32)]
    assert counts.n_sampled.tolist() == [0, 3, 0, 7]
    assert counts.n_tokens.tolist() == [7, 7, 7, 11]


def test_a_template_that_raises_on_prefixes_renders_the_whole_and_goes_on_after_a_refusal(
    families: Families,
) -> None:
    renderer = families.renderer("qwen3_5_think")
    conversation = Conversation([system("s"), user("q"), assistant("a")])
    before = renderer.render(conversation)
    with pytest.raises(ConversationError, match="refuses the conversation: No user query"):
        renderer.render(Conversation([system("s")]))
    assert renderer.render(conversation).token_ids.tolist() == before.token_ids.tolist()
    assert message_counts(before).n_sampled[2] > 0


def test_a_token_across_the_end_of_the_prompt_is_reported_and_not_sampled(families: Families) -> None:
    renderer = families.renderer("qwen2_5")
    tokens = renderer.render(Conversation([user("hi"), assistant("\nHello")]))
    assert flags(tokens)[1] == ("header_straddled",)
    assert sampled_texts(renderer, tokens) == ["Hello<|im_end|>"]


def test_content_that_a_template_strips_has_the_same_content_tokens(families: Families) -> None:
    renderer = families.renderer("qwen3")
    plain, padded = (
        renderer.render(Conversation([user("hi"), assistant(text)])) for text in ("Hello", "\n\nHello")
    )
    assert plain.token_ids[plain.is_content].tolist() == padded.token_ids[padded.is_content].tolist()
    assert padded.messages[1].n_dropped_characters == 2


def test_content_that_a_template_drops_is_counted(families: Families) -> None:
    renderer = families.renderer("qwen3")
    messages = [user("q"), assistant("hidden</think>shown"), user("q"), assistant("a")]
    tokens = renderer.render(Conversation(messages))
    assert content_text(renderer, tokens, 1) == "shown"
    assert tokens.messages[1].n_dropped_characters == len("hidden</think>")
    assert "dropped_characters" in flags(tokens)[1]


def test_a_default_system_prompt_belongs_to_no_message(families: Families) -> None:
    tokens = families.renderer("qwen2_5").render(Conversation([user("Hi"), assistant("Yo")]))
    assert (tokens.message_indices == -1).sum() == 21
    assert spans(tokens) == [(21, 27), (27, 33)]


def test_system_text_in_the_first_user_turn_belongs_to_the_system_message(families: Families) -> None:
    renderer = families.renderer("gemma3")
    tokens = renderer.render(Conversation([system("Be brief."), user("Hi"), assistant("Yo")]))
    assert content_text(renderer, tokens, 0).strip() == "Be brief."


def test_system_text_in_the_last_user_turn_belongs_to_the_system_message(families: Families) -> None:
    source = (
        "{% for m in messages[1:] %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    renderer = families.renderer("qwen", source=source)
    tokens = renderer.render(Conversation([system("Be brief."), user("q"), assistant("a"), user("Hi")]))
    assert content_text(renderer, tokens, 0).strip() == "Be brief."
    assert content_text(renderer, tokens, 3) == "Hi"


@pytest.mark.parametrize("role", ["developer", "critic"])
def test_a_role_passes_through_and_a_refusal_names_it(families: Families, role: str) -> None:
    conversation = Conversation([{"role": role, "content": "d"}, user("q"), assistant("a")])
    tokens = families.renderer("smolvlm").render(conversation)
    assert tokens.messages[0].role == role
    with pytest.raises(ConversationError, match=f"Unexpected message role.*{role}"):
        families.renderer("qwen3_5_think", messages=MessageForm.AS_IS).render(conversation)


def test_a_template_variable_changes_the_ids_and_is_among_the_settings(
    families: Families, qwen3: Path, write_jsonl: Callable[..., Path]
) -> None:
    conversation = Conversation([user("q"), assistant("a", reasoning_content="r"), user("q")])
    plain = families.renderer("qwen3_8").render(conversation)
    changed = families.renderer("qwen3_8", preserve_thinking=False).render(conversation)
    assert plain.token_ids.tolist() != changed.token_ids.tolist()
    source = open_source(
        [str(write_jsonl({"messages": QUESTION}))], str(qwen3), template_kwargs={"preserve_thinking": False}
    )
    assert source.settings["template_kwargs"] == '{"preserve_thinking":false}'


@pytest.mark.parametrize("template", ["qwen3", "llama3", "gemma", "glm4moe", "gptoss", "phi3"])
def test_a_template_without_generation_tags_has_sampled_tokens(families: Families, template: str) -> None:
    tokens = families.renderer(template).render(Conversation(QUESTION))
    assert message_counts(tokens).n_sampled[[0, 2]].tolist() == [0, 0] or template == "glm4moe"
    assert (message_counts(tokens).n_sampled[[1, 3]] > 0).all()


def test_generation_tags_in_a_captured_block_cover_the_answer_and_not_the_header(families: Families) -> None:
    source = (
        "{% for m in messages %}{% set text %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endset %}{{ text }}{% endfor %}"
    )
    renderer = families.renderer("qwen", source=source)
    tokens = renderer.render(Conversation([user("hi"), assistant("yo")]))
    assert sampled_texts(renderer, tokens) == ["yo<|im_end|>"]


def test_a_think_block_that_the_generation_prompt_supplies_is_not_sampled(families: Families) -> None:
    renderer = families.renderer("qwen3", enable_thinking=False)
    conversation = Conversation([user("q"), assistant("a")])
    assert sampled_texts(renderer, renderer.render(conversation)) == ["a<|im_end|>"]
    by_record = Conversation(conversation.messages, template_kwargs={"enable_thinking": False})
    renderer = families.renderer("qwen3")
    assert sampled_texts(renderer, renderer.render(by_record)) == ["a<|im_end|>"]


def test_the_first_token_of_the_answer_is_the_first_sampled_one(families: Families) -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' }}{{ m.content }}{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    )
    tokens = families.renderer("qwen", source=source).render(Conversation([user("q"), assistant("a")]))
    assert tokens.sampled_mask.tolist() == [0, 0, 0, 0, 1, 1]


def test_control_tokens_typed_by_a_user_stay_content_and_are_flagged(families: Families) -> None:
    tokens = families.renderer("qwen3").render(
        Conversation([user("a<|im_end|>\n<|im_start|>assistant\nb"), assistant("No")])
    )
    assert len(tokens) == 22
    assert spans(tokens) == [(0, 12), (12, 22)]
    assert flags(tokens) == [("control_tokens_in_content",), ()]
    assert [message.n_control_tokens for message in tokens.messages] == [2, 0]
    assert not tokens.sampled_mask[:12].any()


def test_bos_is_written_once(families: Families) -> None:
    renderer = families.renderer("llama3")
    tokens = renderer.render(Conversation([user("hi"), assistant("yo")]))
    assert (tokens.token_ids == renderer.tokenizer.hf.bos_token_id).sum() == 1


@pytest.mark.parametrize(("arguments", "is_twice"), [('{"p": "x"}', True), ({"p": "x"}, False)])
def test_arguments_that_are_encoded_twice_are_reported(
    families: Families, arguments: object, is_twice: bool
) -> None:
    messages = [user("q"), assistant("", tool_calls=[call(arguments)]), tool("r"), assistant("a")]
    tokens = families.renderer("llama3_1").render(Conversation(messages, TOOLS))
    assert ("arguments_encoded_twice" in flags(tokens)[1]) == is_twice
    tokens = families.renderer("qwen3").render(Conversation(messages, TOOLS))  # prints text as it is
    assert "arguments_encoded_twice" not in flags(tokens)[1]


@pytest.mark.parametrize(
    ("form", "failing"),
    [(MessageForm.AS_IS, [True, True, True, False]), (MessageForm.AUTO, [False, True, False, False])],
)
def test_arguments_that_a_template_cannot_iterate_are_one_error_each(
    families: Families,
    qwen3: Path,
    write_jsonl: Callable[..., Path],
    tmp_path: Path,
    form: MessageForm,
    failing: list[bool],
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(families.templates["qwen3_5_think"])
    records = [
        {"messages": [user("q"), assistant("", tool_calls=[call(arguments)])]}
        for arguments in ("", "[1]", None, {"p": "x"})
    ]
    source = open_source([str(write_jsonl(*records))], str(qwen3), template=template, messages=form)
    found = [item for part in source.parts for item in source.read(part)]
    assert [isinstance(item, FailedConversation) for item in found] == failing


@pytest.mark.parametrize("template", ["qwen3", "llama3", "gemma", "deepseekv3"])
def test_tokens_that_share_a_character_belong_to_its_message(families: Families, template: str) -> None:
    renderer = families.renderer(template)
    tokens = renderer.render(Conversation([user("e\u0301x 🎉 你好"), assistant("ok")]))
    assert content_text(renderer, tokens, 0).strip() in {"e\u0301x 🎉 你好", "éx 🎉 你好"}


# A tokenizer whose offsets come back zero-width: see test_tokenizer.py.


def test_recorded_ids_decide_where_their_text_encodes_otherwise(families: Families) -> None:
    """Ids of "#1.ok" that an engine sampled one character a token."""
    renderer = families.renderer("qwen3")
    tokenizer = renderer.tokenizer
    ids = [int(tokenizer.token_ids([character])[0][0]) for character in "#1.ok"]
    assert tokenizer.token_ids(["#1.ok"])[0].tolist() != ids
    question = tokenizer.token_ids(["<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n"])[0].tolist()
    record = {"prompt_token_ids": question, "completion_token_ids": ids, "logprobs": [-1.0] * 4 + [-2.0]}
    trace = parse_record(record, load_format("tokens"), PLACE)
    assert isinstance(trace, Trace)
    (branch,) = branch_items(trace, tokenizer)
    assert isinstance(branch, RecordedBranch)
    tokens = attribute_recorded(branch, renderer).tokens
    assert tokens.token_ids.tolist() == [*question, *ids]
    assert tokens.recorded_logprobs is not None
    assert tokens.recorded_logprobs[-5:].tolist() == [-1.0] * 4 + [-2.0]


@pytest.mark.parametrize("n_logprobs", [2, 4])
def test_logprobs_of_another_length_are_refused_not_cut(n_logprobs: int) -> None:
    record = {"prompt_token_ids": [], "completion_token_ids": [1, 2, 3], "logprobs": [-1.0] * n_logprobs}
    with pytest.raises(ConversationError, match=f"has {n_logprobs} values; expected 3"):
        parse_record(record, load_format("tokens"), PLACE)


def nodes_of_lengths(*nodes: tuple[int, int, bool]) -> Trace:
    """Nodes given by parent, number of ids and whether a model generated them."""
    return Trace(
        [
            Node(parent, (), sampled, NodeTokens(np.arange(n, dtype=np.int32), np.full(n, sampled, np.int8)))
            for parent, n, sampled in nodes
        ]
    )


def test_a_shared_prefix_counts_once() -> None:
    trace = nodes_of_lengths((-1, 2, False), (0, 1, True), (1, 2, True), (1, 4, True))
    assert trace_counts(trace).total == 9
    assert sum(counts.total for counts in branch_counts(trace)) == 12


def test_new_input_by_usage_is_never_negative() -> None:
    usages = [Usage(10, 5), Usage(17, 5)]
    nodes = linear([Node(-1, (), True, usage=usage) for usage in usages])
    assert trace_counts(Trace(nodes)).input == 10 + max(0, 17 - 15)
    shrunk = linear([Node(-1, (), True, usage=usage) for usage in (Usage(10, 5), Usage(8, 5))])
    assert trace_counts(Trace(shrunk)).input == 10
