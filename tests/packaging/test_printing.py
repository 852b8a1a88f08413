"""Everything that is printed goes through the console, which escapes what a terminal would obey."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
CONSOLE = {ROOT / "cli/printing/console.py", ROOT / "cli/printing/styled.py"}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path not in CONSOLE)
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
WRITERS = {"write", "writelines", "buffer"}


def ways_to_print(source: str) -> list[str]:
    """Calls and imports that print without the console."""
    return [found for node in ast.walk(ast.parse(source)) for found in _ways(node)]


def _ways(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name(id="print")):
            yield "print"
        case ast.Call(func=ast.Attribute(attr="echo" | "secho")):
            yield "echo"
        case ast.Attribute(value=ast.Attribute(attr=stream), attr=attribute) if (
            stream in STREAMS and attribute in WRITERS
        ):
            yield f"{stream}.{attribute}"
        case ast.ImportFrom(module="rich.console" | "rich.pager" | "rich", names=names):
            yield from (f"rich {each.name}" for each in names if each.name in {"Console", "Pager", "print"})
        case ast.keyword(arg="file", value=ast.Attribute(attr=stream)) if stream in STREAMS:
            yield f"file={stream}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(), *_]):
            yield "os.write"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_prints_through_the_console(path: Path) -> None:
    assert ways_to_print(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "typer.echo(1)",
        "sys.stdout.write('a')",
        "sys.stderr.buffer",
        "from rich.console import Console",
        "from rich import print",
        "csv.writer(x, file=sys.stdout)",
        "os.write(2, b'')",
    ],
)
def test_other_ways_are_found(source: str) -> None:
    assert len(ways_to_print(source)) == 1
