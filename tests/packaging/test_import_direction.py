"""Imports point one way: cli -> analytics -> scoring -> rendering -> dataset, and within rooms too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
FOLDERS = {*ROOMS, "tests", "examples"}


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Dotted name of everything the source imports, inside functions too; relative ones begin in package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from tokscore import scoring` and `from . import tables` name the module behind the import.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(source: str, room: str, package: str) -> list[str]:
    """The imports that a module of room must not have."""
    later_rooms = ROOMS[ROOMS.index(room) + 1 :]
    wrong: list[str] = []
    for name in imported_modules(source, package):
        parts = name.split(".")
        if parts[0] in FOLDERS or (parts[0] == "tokscore" and len(parts) > 1 and parts[1] in later_rooms):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_earlier_rooms_and_by_full_name(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    package = ".".join(["tokscore", *parts[:-1]])
    assert wrong_imports(path.read_text(encoding="utf-8"), parts[0], package) == []


@pytest.mark.parametrize(
    ("room", "source", "wrong"),
    [
        ("rendering", "import tokscore.scoring.table", ["tokscore.scoring.table"]),
        ("scoring", "from tokscore import analytics", ["tokscore.analytics"]),
        ("scoring", "from ..cli import main", ["tokscore.cli.main"]),
        ("analytics", "def f():\n    from rendering import spans", ["rendering.spans"]),
        ("cli", "from tokscore.dataset.schema import TOKENS", []),
        ("scoring", "from . import engines\nimport numpy", []),
    ],
)
def test_wrong_imports_are_found(room: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(source, room, f"tokscore.{room}") == wrong


def test_every_room_has_modules() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(ROOMS)
