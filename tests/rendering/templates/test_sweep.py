"""Every chat template at hand, on every conversation shape, against transformers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rendering.families import Families
from tests.rendering.mistral import mistral_templates
from tests.rendering.shapes import SHAPES
from tests.sweeps import sweep
from tokscore.rendering import ConversationError
from tokscore.rendering.templates.origins import UNTRACKED
from tokscore.rendering.templates.render import prepare_messages, render_template

# Characters whose origin a template loses, by template: with the reason beside it. None so far.
UNTRACKED_CHARACTERS: Mapping[str, int] = {}


def compare(tokenizer: Any, name: str, template: str) -> Counter[str]:
    """Render every shape in both modes here and in transformers; what differs fails."""
    outcome: Counter[str] = Counter()
    variables = dict(tokenizer.special_tokens_map)
    for shape, conversation in SHAPES.items():
        for add_generation_prompt in (False, True):
            place = f"{name}, {shape}, add_generation_prompt={add_generation_prompt}"
            try:
                theirs = tokenizer.apply_chat_template(
                    json.loads(json.dumps(conversation.messages)),
                    tools=conversation.tools,
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                )
            except Exception:  # noqa: BLE001  templates fail in many ways
                theirs = None
            try:
                ours = render_template(
                    template,
                    prepare_messages(conversation.messages),
                    tools=conversation.tools,
                    add_generation_prompt=add_generation_prompt,
                    variables=variables,
                )
            except ConversationError:
                ours = None
            if ours is None or theirs is None:
                assert ours is theirs, (
                    f"{place}: refused {'here' if ours is None else 'in transformers'} only"
                )
                outcome["refused"] += 1
                continue
            assert ours.text == theirs, place
            outcome["equal"] += 1
            outcome["untracked"] += sum(run.length for run in ours.runs if run.origin is UNTRACKED)
    assert outcome["untracked"] == UNTRACKED_CHARACTERS.get(name, 0), name
    return outcome


@pytest.mark.slow
def test_all_templates_of_trl_render_as_in_transformers(families: Families, qwen3: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    assert len(families.templates) == 72
    outcome: Counter[str] = Counter()
    for name, template in families.templates.items():
        outcome += compare(tokenizer, name, template)
    assert outcome.total() == 72 * len(SHAPES) * 2
    assert outcome["equal"] > 4 * outcome["refused"], outcome


@pytest.mark.parametrize("name", sweep(["qwen3", "llama3_1", "gemma3", "deepseek_v3"], quick=["qwen3"]))
def test_the_template_of_a_tokenizer_renders_as_in_transformers(assets: Path, name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(assets / "tokenizers" / name)
    outcome = compare(tokenizer, name, tokenizer.chat_template)
    assert outcome["equal"] > outcome["refused"], outcome


@pytest.mark.slow
def test_the_templates_of_mistral_render_as_in_transformers(assets: Path, qwen3: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen3, bos_token="<s>", eos_token="</s>")
    templates = mistral_templates(assets / "mistral")
    assert len(templates) == 13
    outcome: Counter[str] = Counter()
    for name, template in templates.items():
        outcome += compare(tokenizer, name, template)
    assert outcome["equal"] > outcome["refused"], outcome
