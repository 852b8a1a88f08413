"""Sampled text by the rule, checked by hand: two conversations for each kind of template."""

from __future__ import annotations

import pytest

from tests.rendering.families import Families
from tests.rendering.mistral import mistral_templates
from tests.rendering.shapes import TOOLS, assistant, call, system, tool, user
from tokscore.rendering import Conversation

from .test_sampled_truth import sampled_texts

CHAT = Conversation([user("hi"), assistant("yo"), user("q"), assistant("a b")])
AGENT = Conversation(
    [
        user("hi"),
        assistant("", tool_calls=[call({"p": "x"}, "call12345")]),
        tool("r", "call12345"),
        assistant("done"),
    ],
    TOOLS,
)
SYSTEM = Conversation([system("be good"), user("hi"), assistant("yo")])
THOUGHT = Conversation([user("hi"), assistant("yo", reasoning_content="hm")])
GREETING = Conversation([assistant("hello"), user("hi"), assistant("yo")])

# Templates of kinds that nobody ships in a package, written for this test.
WRITTEN = {
    # MiniMax: role markers and stops that no other family uses, a think prefix in the prompt alone.
    "minimax": "{% for m in messages %}{% set role = 'ai' if m.role == 'assistant' else m.role %}"
    "{{ ']~b]' ~ role ~ '\n' }}{% if m.reasoning_content %}{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{% endif %}"
    "{{ m.content }}{{ '[e~[\n' }}{% endfor %}{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}",
    # GLM 4.7: the next role marker is the stop, earlier turns close a think block that was never opened.
    "glm47": "[gMASK]<sop>{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% if m.role == 'assistant' %}"
    "{{ '<think>' ~ m.reasoning_content if m.reasoning_content }}{{ '</think>' }}{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}",
    # Kimi: the stop lies behind every message.
    "kimi": "{% for m in messages %}{{ '<|im_' ~ m.role ~ '|>' ~ m.role ~ '<|im_middle|>' ~ m.content ~ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}",
    # A default system prompt that the loop itself prints.
    "qwen_preamble": "{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nBe nice.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
}


def sampled(families: Families, template: str, conversation: Conversation) -> list[str]:
    """Sampled text of each assistant message."""
    sources = WRITTEN | (mistral_templates(families.assets / "mistral") if "mistral" in template else {})
    renderer = families.renderer(template, source=sources.get(template))
    return sampled_texts(renderer, renderer.render(conversation))


GEMMA_CALL = '<|tool_call>call:f{p:<|"|>x<|"|>}<tool_call|>'
HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"p": "x"}}\n</tool_call>'
CODER_CALL = "<tool_call>\n<function=f>\n<parameter=p>\nx\n</parameter>\n</function>\n</tool_call>"
EOT = "<|END_OF_TURN_TOKEN|>"


@pytest.mark.parametrize(
    ("template", "conversation", "expected"),
    [
        ("mistral_v1", CHAT, ["yo</s>", "a b</s>"]),
        ("mistral_v1", SYSTEM, ["yo</s>"]),
        ("mistral_v3_spm", CHAT, [" yo</s>", " a b</s>"]),
        (
            "mistral_v3_spm",
            AGENT,
            ['[TOOL_CALLS] [{"name": "f", "arguments": {"p": "x"}, "id": "call12345"}]</s>', " done</s>"],
        ),
        ("mistral_v7", SYSTEM, ["yo</s>"]),
        (
            "mistral_v7",
            AGENT,
            ['[TOOL_CALLS][{"name": "f", "arguments": {"p": "x"}, "id": "call12345"}]</s>', "done</s>"],
        ),
        ("mistral_v13_thinking", THOUGHT, ["[THINK]hm[/THINK]yo</s>"]),
        ("mistral_v13_thinking", AGENT, ['[TOOL_CALLS]f[ARGS]{"p": "x"}</s>', "done</s>"]),
        ("mistral_v15", CHAT, ["yo</s>", "a b</s>"]),
        ("mistral_v15", AGENT, ['[TOOL_CALLS]f[ARGS]{"p": "x"}</s>', "done</s>"]),
        ("cohere", CHAT, [f"yo{EOT}", f"a b{EOT}"]),
        ("cohere", SYSTEM, [f"yo{EOT}"]),
        ("cohere2", CHAT, [f"yo<|END_RESPONSE|>{EOT}", f"a b<|END_RESPONSE|>{EOT}"]),
        ("cohere2", SYSTEM, [f"yo<|END_RESPONSE|>{EOT}"]),
        ("phi3", CHAT, ["yo<|end|>", "a b<|end|>"]),
        ("phi3", SYSTEM, ["yo<|end|>"]),
        ("phi3_5", CHAT, ["yo<|end|>", "a b<|end|>"]),
        ("phi3_5", SYSTEM, ["yo<|end|>"]),
        ("gemma4", CHAT, ["yo<turn|>", "a b<turn|>"]),
        ("gemma4", AGENT, [GEMMA_CALL, "done<turn|>"]),
        ("gemma4_v2", AGENT, [f"{GEMMA_CALL}<turn|>", "done<turn|>"]),
        ("gemma4_v5", THOUGHT, ["<|channel>thought\nhm\n<channel|>yo<turn|>"]),
        ("llama3_1", CHAT, ["yo<|eot_id|>", "a b<|eot_id|>"]),
        ("llama3_1", AGENT, ['{"name": "f", "parameters": {"p": "x"}}<|eot_id|>', "done<|eot_id|>"]),
        (
            "gptoss",
            CHAT,
            ["<|channel|>final<|message|>yo<|end|>", "<|channel|>final<|message|>a b<|return|>"],
        ),
        (
            "gptoss",
            AGENT,
            [
                ' to=functions.f<|channel|>commentary json<|message|>{"p": "x"}<|call|>',
                "<|channel|>final<|message|>done<|return|>",
            ],
        ),
        ("qwen3", AGENT, [f"{HERMES_CALL}<|im_end|>", "<think>\n\n</think>\n\ndone<|im_end|>"]),
        ("qwen3_5_nothink", AGENT, [f"{CODER_CALL}<|im_end|>", "done<|im_end|>"]),
        ("nemotron_3_nano", THOUGHT, ["hm\n</think>\nyo<|im_end|>"]),
        ("nemotron_3_nano", CHAT, ["</think>yo<|im_end|>", "</think>a b<|im_end|>"]),
        ("deepseekv3", CHAT, ["yo<｜end▁of▁sentence｜>", "a b<｜end▁of▁sentence｜>"]),
        ("glm4moe", CHAT, ["\n<think></think>\nyo", "\n<think></think>\na b"]),
        ("minimax", CHAT, ["yo[e~[", "a b[e~["]),
        ("minimax", THOUGHT, ["hm\n</think>\n\nyo[e~["]),
        ("glm47", CHAT, ["</think>yo", "</think>a b"]),
        ("glm47", THOUGHT, ["hm</think>yo"]),
        ("kimi", CHAT, ["yo<|im_end|>", "a b<|im_end|>"]),
        ("kimi", GREETING, ["hello<|im_end|>", "yo<|im_end|>"]),
        ("qwen_preamble", CHAT, ["yo<|im_end|>", "a b<|im_end|>"]),
        ("qwen_preamble", GREETING, ["hello<|im_end|>", "yo<|im_end|>"]),
        ("qwen2_5", GREETING, ["hello<|im_end|>", "yo<|im_end|>"]),
    ],
)
def test_the_sampled_text_is_what_the_model_wrote(
    families: Families, template: str, conversation: Conversation, expected: list[str]
) -> None:
    assert sampled(families, template, conversation) == expected


def test_the_role_marker_that_ends_an_answer_is_sampled_and_belongs_to_the_next_message(
    families: Families,
) -> None:
    renderer = families.renderer("glm4moe")
    tokens = renderer.render(CHAT)
    marker = tokens.token_ids == renderer.tokenizer.hf.convert_tokens_to_ids("<|user|>")
    assert tokens.sampled_mask[marker].tolist() == [0, 1]
    assert tokens.message_indices[marker].tolist() == [0, 2]


def test_the_marker_of_a_tool_result_that_ends_a_call_is_sampled_and_belongs_to_the_result(
    families: Families,
) -> None:
    renderer = families.renderer("gemma4")
    tokens = renderer.render(AGENT)
    marker = tokens.token_ids == renderer.tokenizer.hf.convert_tokens_to_ids("<|tool_response>")
    assert tokens.sampled_mask[marker].tolist() == [1]
    assert tokens.message_indices[marker].tolist() == [2]


def test_markers_of_messages_that_the_template_rebuilds_belong_to_them(families: Families) -> None:
    source = mistral_templates(families.assets / "mistral")["mistral_v7"]
    tokens = families.renderer("mistral_v7", source=source).render(SYSTEM)
    assert tokens.message_indices.tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_without_a_generation_prompt_a_header_is_not_taken_for_an_answer(families: Families) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokens = families.renderer("qwen", source=source).render(CHAT)
    reasons = [message.unknown_reason for message in tokens.messages]
    assert reasons[1] == "its turn opens with template text that no generation prompt supplies"
    assert set(tokens.sampled_mask[tokens.message_indices == 1].tolist()) == {-1}


def test_an_answer_in_the_same_turn_behind_its_tool_results_is_unknown(families: Families) -> None:
    messages = [AGENT.messages[0], {**AGENT.messages[1], "content": "so"}, *AGENT.messages[2:]]
    tokens = families.renderer("gemma4").render(Conversation(messages, TOOLS))
    assert (
        tokens.messages[1].unknown_reason == "its own text goes on behind the tool results in the same turn"
    )
