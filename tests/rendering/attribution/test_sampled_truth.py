"""The rule for sampled tokens against generation tags that others put into real templates."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.rendering.attribution.sweep import without_tags
from tests.rendering.families import Families
from tests.rendering.shapes import SHAPES
from tokscore.rendering import Conversation, ConversationError, RenderedTokens, Renderer
from tokscore.rendering.attribution.generation_tags import Policy
from tokscore.rendering.attribution.settings import Verify

UNEXPLAINED = {Policy.OTHER, Policy.UNKNOWN}


def policies(tokens: RenderedTokens) -> set[Policy]:
    return {Policy(flag) for message in tokens.messages for flag in message.flags if flag in set(Policy)}


def sampled_texts(renderer: Renderer, tokens: RenderedTokens) -> list[str]:
    """Sampled text of each assistant message."""
    decode = renderer.tokenizer.hf.decode
    return [
        decode(tokens.token_ids[(tokens.sampled_mask == 1) & (tokens.message_indices == i)])
        for i, message in enumerate(tokens.messages)
        if message.role == "assistant"
    ]


@pytest.mark.slow
def test_the_rule_agrees_with_generation_tags_but_for_named_policies(families: Families) -> None:
    outcome: Counter[str] = Counter()
    by_policy: Counter[Policy] = Counter()
    unexplained: Counter[tuple[str, str]] = Counter()
    tagged = [name for name, source in families.templates.items() if "endgeneration" in source]
    assert len(tagged) == 34
    for name in tagged:
        for add_generation_prompt in (False, True):
            renderer = families.renderer(name, add_generation_prompt=add_generation_prompt, verify=Verify.OFF)
            for shape, conversation in SHAPES.items():
                try:
                    found = policies(renderer.render(conversation))
                except ConversationError:
                    outcome["refused"] += 1
                    continue
                by_policy.update(found)
                if found & UNEXPLAINED:
                    unexplained[name, shape] += 1
                outcome["differ" if found & UNEXPLAINED else "policies" if found else "equal"] += 1
    # docs/attribution.md lists the reasons.
    assert {name for name, _ in unexplained} == {
        "deepseekv3_training",
        "diffusion_gemma_training",
        "phi3_training",
        "phi3_5_training",
    }, unexplained
    n_rendered = outcome["equal"] + outcome["policies"] + outcome["differ"]
    assert n_rendered >= 1023
    assert outcome["equal"] + outcome["policies"] >= 979 / 1023 * n_rendered, (outcome, by_policy)


@pytest.mark.parametrize(
    ("template", "conversation", "policy"),
    [
        ("deepseekv3_training", SHAPES["one answer"], Policy.HEADER),
        ("qwen3_5_nothink_training", SHAPES["one answer"], Policy.THINK_PREFIX),
        ("qwen2_5_vl_training", SHAPES["white space"], Policy.STRADDLED),
        ("qwen3_training", SHAPES["one answer"], Policy.WHITE_SPACE),
        ("diffusion_gemma_training", SHAPES["ends with a call"], Policy.STOP),
        ("diffusion_gemma_training", SHAPES["agent loop"], Policy.UNKNOWN),
        ("phi3_training", SHAPES["one answer"], Policy.OTHER),
    ],
)
def test_a_difference_from_the_tags_is_named_by_its_policy(
    families: Families, template: str, conversation: Conversation, policy: Policy
) -> None:
    assert policy in policies(families.renderer(template).render(conversation))


@pytest.mark.parametrize(
    "template", ["cohere_training", "llama3_training", "qwen3_training", "gptoss_training"]
)
def test_the_tags_decide_and_without_them_the_rule(families: Families, template: str) -> None:
    conversation = SHAPES["multi turn"]
    tagged = families.renderer(template)
    plain = families.renderer(template, source=without_tags(families.templates[template]))
    by_tags, by_rule = tagged.render(conversation), plain.render(conversation)
    assert by_tags.token_ids.tolist() == by_rule.token_ids.tolist()
    assert not policies(by_rule)
    same = by_tags.sampled_mask.tolist() == by_rule.sampled_mask.tolist()
    assert same == (not policies(by_tags))
    assert all("2" in text for text in sampled_texts(tagged, by_tags)[:1])
