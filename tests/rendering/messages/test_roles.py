"""Roles that are likely mistakes, and those that are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokscore.rendering.messages.roles import KNOWN_ROLES, meant_role

# What a template compares the role of a message with.
COMPARED = re.compile(r"""(?:\['role'\]|\["role"\]|\.role|\brole) *(?:==|!=) *(?:'(\w+)'|"(\w+)")""")


@pytest.mark.parametrize(
    ("role", "meant"),
    [
        ("asistant", "assistant"),
        ("assitant", "assistant"),
        ("sytem", "system"),
        ("System", "system"),
        ("user ", "user"),
        ("usr", "user"),
        ("tol", "tool"),
        ("devloper", "developer"),
        ("obsevation", "observation"),
    ],
)
def test_a_mistyped_role_is_near_the_one_that_was_meant(role: str, meant: str) -> None:
    assert meant_role(role, "") == meant


@pytest.mark.parametrize(
    "role",
    [
        *KNOWN_ROLES,
        "user_2",
        "assistant1",
        "coder",
        "users",
        "model_a",
        "Assistant A",
        "cool",
        "observer",
        "narrator",
        "moderator",
        "x",
        "",
    ],
)
def test_other_roles_are_no_mistakes(role: str) -> None:
    assert meant_role(role, "") is None


@pytest.mark.parametrize("template", ["{% if m.role == 'asistant' %}", '{% if m["role"] in ["asistant"] %}'])
def test_a_role_that_the_template_names_is_known(template: str) -> None:
    assert meant_role("asistant", template) is None


def test_roles_of_published_templates_are_known(assets: Path) -> None:
    found = {
        name
        for path in assets.rglob("*.jinja")
        for names in COMPARED.findall(path.read_text("utf-8"))
        for name in names
        if name
    }
    assert len(found) > 8
    assert {role: meant for role in found if (meant := meant_role(role, "")) is not None} == {}
