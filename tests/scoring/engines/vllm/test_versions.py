"""The places that tokscore takes hold of in vLLM, held against sources."""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("vllm_versions", ROOT / "benchmarks" / "vllm_versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vllm_versions"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_has_every_place(versions: ModuleType) -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    release = versions.read("installed", Path(spec.submodule_search_locations[0]).parent)
    assert {part: names for part, names in release.missing.items() if names} == {}
    assert release.path == "fused"


SOURCE = """
class Worker:
    field: int = 0
    def __init__(self):
        self.rows = 1
    def step(self, states, counts, extra=None):
        other.column = 2
"""


@pytest.mark.parametrize(
    ("name", "arguments", "is_there"),
    [
        ("Worker.field", None, True),
        ("Worker.rows", None, True),
        ("Worker.step", None, True),
        ("Worker.column", None, False),
        ("Other.rows", None, False),
        ("Worker.step", ("self", "states", "counts"), True),
        ("Worker.step", ("self", "states", "counts", "extra"), True),
        ("Worker.step", ("self", "states"), False),
        ("Worker.step", ("self", "counts", "states"), False),
        ("Worker.steps", ("self",), False),
    ],
)
def test_names_and_signatures_are_compared(
    versions: ModuleType, name: str, arguments: tuple[str, ...] | None, is_there: bool
) -> None:
    seam = versions.Seam("V1", "file.py", name, arguments)
    assert (versions.fault_of(seam, ast.parse(SOURCE)) is None) == is_there


def test_a_release_without_the_runners_has_another_path(versions: ModuleType, tmp_path: Path) -> None:
    release = versions.read("0.1", tmp_path)
    assert release.path == "none"
    assert release.default == "V1"
    missing = dict.fromkeys(release.missing, ())
    assert versions.Release("1", missing, "V1").path == "fused"
    assert versions.Release("1", missing | {"V2": ["a"]}, "V1").path == "tensors"
    assert versions.Release("1", missing | {"V2": ["a"], "tensors": ["b"]}, "V1").path == "flat"


def test_versions_are_ordered_by_their_numbers(versions: ModuleType) -> None:
    found = sorted(["0.9.2", "0.10.1.1", "0.24.0", "0.6.1.post2", "0.6.1"], key=versions.key)
    assert found == ["0.6.1", "0.6.1.post2", "0.9.2", "0.10.1.1", "0.24.0"]


def test_the_table_has_a_line_for_each_release(versions: ModuleType) -> None:
    page = (ROOT / "docs" / "vllm_versions.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| 0.")]
    assert len(lines) >= 12
    assert versions.table([]) == page[: page.index("| 0.")]
