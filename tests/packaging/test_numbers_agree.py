"""A number of things has a verb that agrees with it: 1 part is, 2 parts are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tokscore.dataset.errors import agreeing, counted, none_could

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
OF_SEVERAL = re.compile(r"(?:(?!\bwhich\b)[^.;:,])*\b(are|were|have|need)\b")


def verbs_of_several(source: str) -> list[str]:
    """Texts behind a number and its noun whose verb is right for several alone."""
    return [
        str(after.value)
        for text in ast.walk(ast.parse(source))
        if isinstance(text, ast.JoinedStr)
        for before, after in zip(text.values, text.values[1:], strict=False)
        if isinstance(before, ast.FormattedValue)
        and isinstance(before.value, ast.Call)
        and isinstance(before.value.func, ast.Name)
        and before.value.func.id == "counted"
        and isinstance(after, ast.Constant)
        and OF_SEVERAL.match(str(after.value))
    ]


def test_no_verb_is_that_of_several_alone() -> None:
    found = {
        str(path.relative_to(ROOT)): texts
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if (texts := verbs_of_several(path.read_text("utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "f\"{counted(n, 'part')} are whole\"",
        "f\"{counted(n, 'record')} could not be read and were left out.\"",
        "f\"{counted(n, 'target')} without a logprob have weight 0\"",
    ],
)
def test_such_verbs_are_found(source: str) -> None:
    assert len(verbs_of_several(source)) == 1


def test_one_and_several_are_told_apart() -> None:
    said = [f"{counted(n, 'part')} {agreeing(n, 'is', 'are')}" for n in (0, 1, 2)]
    assert said == ["0 parts are", "1 part is", "2 parts are"]
    assert none_could(1, "record", "be read", "why") == "the only record could not be read: why"
    assert none_could(2, "record", "be read", "why") == "none of the 2 records could be read. The first: why"
