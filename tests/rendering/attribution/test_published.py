"""Every published template at hand against a reference made of renderings of transformers alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rendering.attribution.answer_shapes import ANSWER_SHAPES, words
from tests.rendering.attribution.sweep import Outcome, sweep
from tests.rendering.families import Families
from tests.rendering.published import published_templates
from tests.rendering.shapes import TOOLS, assistant, call, system, tool, user
from tokscore.rendering import Conversation

FEW_SHAPES = ("two turns", "greeting", "reasoning, two turns", "newlines", "calls in turn", "two calls")
N_RANDOM_TEMPLATES = 20


def check_none_wrong(outcome: Outcome) -> None:
    assert not outcome.wrong, "\n".join(outcome.wrong)


def check(outcome: Outcome) -> None:
    counts = outcome.counts
    check_none_wrong(outcome)
    assert counts["right"] > 0.9 * counts["answers"], counts


@pytest.mark.slow
def test_no_mask_is_wrong_on_six_shapes(families: Families) -> None:
    outcome, modes = Outcome(), itertools.cycle([(False,), (True,)])
    for published, mode in zip(published_templates(families), modes, strict=False):
        sweep(published, {name: ANSWER_SHAPES[name] for name in FEW_SHAPES}, mode, outcome)
    check(outcome)


@pytest.mark.slow
def test_an_answer_keeps_the_stop_that_belongs_to_the_one_it_goes_on(families: Families) -> None:
    """Templates of Mistral print answers that follow each other as one turn of the first."""
    outcome = Outcome()
    for published in published_templates(families):
        if published.name.startswith("mistral/"):
            sweep(published, {"two answers": ANSWER_SHAPES["two answers"]}, (False, True), outcome)
    assert outcome.counts["right"] > 20
    check_none_wrong(outcome)


@pytest.mark.slow
def test_no_mask_is_wrong_on_any_shape(families: Families) -> None:
    outcome = Outcome()
    assert len(ANSWER_SHAPES) >= 37
    for published in published_templates(families):
        sweep(published, ANSWER_SHAPES, (False, True), outcome)
    check(outcome)
    assert outcome.counts["unknown"] <= 0.03 * outcome.counts["answers"], outcome.unknown


def random_conversations(n: int, seed: int) -> Iterator[Conversation]:
    """Conversations of one to four turns, with and without tools, reasoning, system text and odd white space."""
    rng = random.Random(seed)

    def text(vocabulary: Iterator[str]) -> str:
        found = rng.choice(["", "", " ", "\n", "- "]) + next(vocabulary)
        for _ in range(rng.randrange(4)):
            found += rng.choice([" ", "\n", ", ", "\n\n", " é "]) + next(vocabulary)
        return found + rng.choice([".", "?", "", "\n", " ", ")"])

    for k in range(n):
        vocabulary = words(seed * 1_000_003 + k)
        has_tools = rng.random() < 0.4
        messages: list[dict[str, Any]] = [system(text(vocabulary))] if rng.random() < 0.3 else []
        for _ in range(rng.randrange(1, 5)):
            messages.append(user(text(vocabulary)))
            while has_tools and rng.random() < 0.4:
                identifier = f"call{len(messages):05}"
                said = rng.choice(["", text(vocabulary)])
                more = {"reasoning_content": next(vocabulary)} if rng.random() < 0.3 else {}
                calls = [call({"p": next(vocabulary)}, identifier)]
                messages += [assistant(said, tool_calls=calls, **more), tool(text(vocabulary), identifier)]
            more = {"reasoning_content": text(vocabulary).strip()} if rng.random() < 0.3 else {}
            messages.append(assistant(text(vocabulary), **more))
        yield Conversation(messages, TOOLS if has_tools else None)


def sweep_random(families: Families, n: int) -> Outcome:
    """`n` conversations, shared out among templates that a fixed seed chose."""
    outcome = Outcome()
    names = sorted(each.name for each in published_templates(families))
    chosen = set(random.Random(0).sample(names, N_RANDOM_TEMPLATES))
    for k, published in enumerate(each for each in published_templates(families) if each.name in chosen):
        conversations = random_conversations(n // N_RANDOM_TEMPLATES, k)
        named = {str(number): conversation for number, conversation in enumerate(conversations)}
        sweep(published, named, (bool(k % 2),), outcome)
    return outcome


@pytest.mark.slow
def test_no_mask_is_wrong_on_400_random_conversations(families: Families) -> None:
    check(sweep_random(families, 400))


@pytest.mark.nightly
def test_no_mask_is_wrong_on_20000_random_conversations(families: Families) -> None:
    check(sweep_random(families, 20_000))
