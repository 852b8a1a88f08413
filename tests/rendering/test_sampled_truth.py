"""The rule for sampled tokens against generation tags that others put into real templates."""

from __future__ import annotations

from collections import Counter

import pytest

from tokscore.rendering import ConversationError
from tokscore.rendering.policies import Policy
from tokscore.rendering.templates import GENERATION_TAG

from .families import Families
from .shapes import SHAPES

# What is left when the policies are left out, by template: messages, and why.
UNEXPLAINED = {
    # The template prints <|endoftext|> behind the last <|end|>; both end a turn, and a model stops at the first.
    "phi3_training": {Policy.OTHER: 28},
}


def test_the_rule_agrees_with_generation_tags_but_for_named_policies(families: Families) -> None:
    outcome: Counter[str] = Counter()
    left: dict[str, Counter[Policy]] = {}
    for name, template in families.templates.items():
        if not GENERATION_TAG.search(template):
            continue
        outcome["templates"] += 1
        for add_generation_prompt in (False, True):
            renderer = families.renderer(name, add_generation_prompt=add_generation_prompt)
            for conversation in SHAPES.values():
                try:
                    tokens = renderer.render(conversation)
                except ConversationError:
                    outcome["refused"] += 1
                    continue
                policies = Counter(Policy(f) for m in tokens.messages for f in m.flags if f in list(Policy))
                remaining = {p: n for p, n in policies.items() if p in (Policy.OTHER, Policy.UNKNOWN)}
                outcome.update(policies)
                outcome["equal" if not policies else "differ" if remaining else "equal but for policies"] += 1
                if remaining:
                    left.setdefault(name, Counter()).update(remaining)
    print(outcome, left)
    assert outcome["templates"] == 34
