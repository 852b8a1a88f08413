"""Imports point one way: cli -> analytics -> scoring -> rendering -> dataset, and run in no circle inside a room."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
FOLDERS = {*ROOMS, "tests", "examples"}
Graph = dict[str, set[str]]


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


def name_of(path: Path) -> str:
    """Dotted name of the module at this path below the root."""
    return ".".join(["tokscore", *path.with_suffix("").parts]).removesuffix(".__init__")


def imports_by_module(sources: Mapping[Path, str]) -> Graph:
    """Imports among the modules; those inside functions and for type checkers count too."""
    known = {name_of(path) for path in sources}
    graph: Graph = {}
    for path, source in sources.items():
        package = ".".join(["tokscore", *path.parts[:-1]])
        names = set(imported_modules(source, package))
        modules = {name if name in known else name.rpartition(".")[0] for name in names} & known
        graph[name_of(path)] = modules - {name_of(path)}
    return graph


def imports_by_folder(sources: Mapping[Path, str]) -> Graph:
    """Imports among the folders."""
    folder = {name_of(path): str(path.parent) for path in sources}
    graph: Graph = {name: set() for name in folder.values()}
    for module, imported in imports_by_module(sources).items():
        graph[folder[module]] |= {folder[name] for name in imported} - {folder[module]}
    return graph


def circle(graph: Graph) -> list[str]:
    """One circle of imports, its first name repeated at the end; empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    """The modules of all rooms by path."""
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in MODULES}


def test_no_modules_import_each_other_in_a_circle(sources: dict[Path, str]) -> None:
    assert circle(imports_by_module(sources)) == []


def test_no_folders_import_each_other_in_a_circle(sources: dict[Path, str]) -> None:
    graph = imports_by_folder(sources)
    assert {"rendering", "rendering/reading/formats", "scoring/engines", "cli/printing"} <= set(graph)
    assert circle(graph) == []


def room_of(**modules: str) -> dict[Path, str]:
    """Sources of a room called `dataset`; two underscores stand for a slash."""
    return {Path(f"dataset/{name.replace('__', '/')}.py"): source for name, source in modules.items()}


@pytest.mark.parametrize(
    "source",
    [
        "from tokscore.dataset.rows import COLUMNS",
        "from tokscore.dataset import rows",
        "from . import rows",
        "def f():\n    import tokscore.dataset.rows",
        "if TYPE_CHECKING:\n    from tokscore.dataset.rows import Row",
    ],
)
def test_circles_of_modules_are_found(source: str) -> None:
    modules = room_of(rows="from tokscore.dataset.schema import SCHEMA", schema=source)
    found = circle(imports_by_module(modules))
    assert found[0] == found[-1]
    assert set(found) == {"tokscore.dataset.rows", "tokscore.dataset.schema"}


def test_circles_of_folders_are_found_where_modules_have_none() -> None:
    modules = room_of(
        rows="from tokscore.dataset.parquet.files import open_file",
        parquet__files="",
        parquet__columns="from tokscore.dataset.schema import SCHEMA",
        schema="",
    )
    assert circle(imports_by_module(modules)) == []
    assert set(circle(imports_by_folder(modules))) == {"dataset", "dataset/parquet"}
