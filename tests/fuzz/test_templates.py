"""Mutated chat templates: refused, or rendered as transformers does, within the limits."""

from __future__ import annotations

import json
import random
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.fuzzing import HangError, limited, run_cases
from tests.rendering.families import Families
from tests.rendering.mistral import mistral_templates
from tests.rendering.shapes import SHAPES
from tokscore.dataset.errors import TokscoreError
from tokscore.rendering.templates.limits import TemplateLimits
from tokscore.rendering.templates.render import check_template, prepare_messages, render_template

pytestmark = pytest.mark.filterwarnings("ignore")
LIMITS = TemplateLimits(cpu_s=2.0)
# Parsing, and what one operation may take before anybody looks at the clock.
LIMIT_S = 6.0
_PIECE = re.compile(r"\{[%{#]-?|-?[%}#]\}|\w+|\s+|.", re.DOTALL)
HOSTILE = (
    " * 10**9", " ~ messages", " | tojson", " | length", " | join", ".__class__", "[0]", "[-1]", "[:5]", " | safe",
    "{% for i in range(99999) %}", "{% endfor %}", "{% endif %}", "{% if true %}", "{% else %}", "{{", "}}", "{%", "%}",
    "{{ raise_exception('\x1b[31m') }}", "{{ strftime_now('%Y') }}", " is defined", " is none", " not in messages",
    "{{ messages | string }}", "{{ messages | tojson(indent=2) }}", "\ud83d", "\0", " | groupby('role') | list",
    "{% set ns = namespace(x=messages) %}", "{% macro m(a) %}{{ a }}{{ m(a) }}{% endmacro %}{{ m(1) }}", "none", "1e400",
    " | replace('a', 'b')", " | upper", " | trim", ".split('x')", " + 1", " - 1", " / 0", " % 0", " // 2", "''", "~ 1.5",
    "{%- generation %}", "{%- endgeneration %}", "{% break %}", "loop.index0", "loop.previtem", " | reverse | list", "{}",
)  # fmt: skip


def mutate(source: str, others: list[str], chance: random.Random) -> str:
    pieces = _PIECE.findall(source)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        where = chance.randrange(len(pieces) + 1)
        n = chance.choice((1, 1, 2, 5, 30))
        way = chance.random()
        if way < 0.25:
            del pieces[where : where + n]
        elif way < 0.4:
            pieces[where:where] = pieces[where : where + n]
        elif way < 0.55 and where < len(pieces):
            other = chance.randrange(len(pieces))
            pieces[where], pieces[other] = pieces[other], pieces[where]
        elif way < 0.7:
            pieces[where : where + n] = _PIECE.findall(chance.choice(others))[where : where + n]
        elif way < 0.85:
            pieces.insert(where, chance.choice(HOSTILE))
        elif where < len(pieces):
            pieces[where] = chance.choice(pieces)
    return "".join(pieces)


def difference(ours: str, theirs: str) -> str:
    """Both texts around the first character that differs."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    where = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    return f"{ours[where - 40 : where + 40]!r} for {theirs[where - 40 : where + 40]!r}"


def test_mutated_templates_are_refused_or_rendered_as_transformers_does(assets: Path, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    families = Families(assets, tmp_path)
    sources = [*families.templates.values(), *mistral_templates(families.assets / "mistral").values()]
    shapes = list(SHAPES.values())

    def case(_: int, chance: random.Random) -> str:
        source = mutate(chance.choice(sources), sources, chance)
        conversation = chance.choice(shapes)
        add_generation_prompt = chance.random() < 0.5
        try:
            check_template(source)
            ours = render_template(
                source,
                prepare_messages(conversation.messages),
                tools=conversation.tools,
                add_generation_prompt=add_generation_prompt,
                variables={"bos_token": "<s>", "eos_token": "</s>"},
                limits=LIMITS,
            )
        except (TokscoreError, RecursionError):  # the renderer says of both what it refuses
            return "refused"
        theirs: Any = None
        try:
            with limited(LIMIT_S):
                [theirs], _spans = render_jinja_template(
                    [prepare_messages(json.loads(json.dumps(conversation.messages)))],
                    tools=conversation.tools,
                    chat_template=source,
                    add_generation_prompt=add_generation_prompt,
                    bos_token="<s>",
                    eos_token="</s>",
                )
        except (Exception, HangError) as error:
            raise AssertionError(f"only transformers refuses: {error!r}") from error
        assert ours.text == theirs, f"the text is another: {difference(ours.text, theirs)}"
        return "equal"

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = run_cases(100, 20_000, case, limit_s=2 * LIMIT_S)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert outcomes["refused"] > 0
    assert outcomes["equal"] > 0
