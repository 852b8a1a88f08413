"""Every folder of the rooms says what it is for, and stays small enough to be seen at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
FOLDERS = sorted(path.parent for room in ROOMS for path in (ROOT / room).rglob("__init__.py"))
# A listing of 14 names is read in one glance; a longer one hides that the folder holds two ideas. Folders of
# a registry hold one idea however many rows it has.
MAX_MODULES = 14
REGISTRIES = {ROOT / "rendering/reading/formats"}

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))


def test_every_folder_with_modules_is_a_package() -> None:
    assert {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")} == set(FOLDERS)


@each_folder
def test_a_folder_says_what_comes_in_what_goes_out_and_what_it_must_not_know(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert [part for part in ("In: ", "Out: ", "Must not know: ") if part not in docstring] == []


@each_folder
def test_a_folder_holds_one_idea(folder: Path) -> None:
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert len(modules) <= MAX_MODULES or folder in REGISTRIES, (
        f"find the second idea among {sorted(modules)}"
    )


def test_the_tree_in_contributing_names_every_folder() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("```\n")[2].partition("```")[0]
    assert [folder.name for folder in FOLDERS if f"{folder.name}/" not in tree] == []
