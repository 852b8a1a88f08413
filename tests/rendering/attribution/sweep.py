"""Answers of real templates, held against the reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.rendering.attribution.reference import NOW, Judge, differences
from tests.rendering.published import Published
from tokscore.dataset.choices import MessageForm
from tokscore.rendering import Conversation, ConversationError, Renderer
from tokscore.rendering.attribution.renderer import Verify


@dataclass
class Outcome:
    """What came of a sweep.

    Attributes:
        counts: Of renderings and answers, by what became of them.
        unknown: Answers by template and reason.
        wrong: Answers whose mask differs from the reference, as text.
    """

    counts: Counter[str] = field(default_factory=Counter)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def without_tags(template: str) -> str:
    """The template with scopes in place of its generation blocks; it prints the same."""
    opened = re.sub(r"\{%(-?)\s*generation\s*(-?)%\}", r"{%\1 with \2%}", template)
    return re.sub(r"\{%(-?)\s*endgeneration\s*(-?)%\}", r"{%\1 endwith \2%}", opened)


def sweep(
    published: Published, conversations: Mapping[str, Conversation], modes: tuple[bool, ...], outcome: Outcome
) -> None:
    """Render conversations with one template, without its tags, and compare every answer."""
    source = without_tags(published.source)
    tokenizer = published.tokenizer
    tokenizer.template = source
    judge = Judge(tokenizer.hf, source, published.variables, tokenizer.eos_ids, tokenizer.special_ids)
    for prompted in modes:
        renderer = Renderer(
            tokenizer,
            template_kwargs=published.variables,
            add_generation_prompt=prompted,
            verify=Verify.OFF,
            messages=MessageForm.AS_IS,
            template_time=NOW,
        )
        for name, conversation in conversations.items():
            try:
                tokens = renderer.render(conversation)
            except ConversationError:
                outcome.counts["refused"] += 1
                continue
            if tokens.text != judge.render(conversation.messages, conversation.tools, prompted=prompted):
                outcome.counts["other text"] += 1  # which a run that verifies refuses
                continue
            outcome.counts["renderings"] += 1
            expected = judge.answers(conversation.messages, conversation.tools, prompted=prompted)
            mask = tokens.sampled_mask.tolist()
            for i, facts in enumerate(tokens.messages):
                if facts.role != "assistant":
                    continue
                outcome.counts["answers"] += 1
                answer = expected.get(i, "not rendered")
                if facts.unknown_reason is not None:
                    outcome.counts["unknown"] += 1
                    outcome.unknown[published.name, facts.unknown_reason] += 1
                elif isinstance(answer, str):
                    outcome.counts["not judged"] += 1
                elif found := differences(answer, mask):
                    outcome.counts["wrong"] += 1
                    outcome.wrong.append(f"{published.name}, {name}, {prompted}, message {i}: {found}")
                else:
                    outcome.counts["right"] += 1
