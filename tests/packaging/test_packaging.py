"""The contents of an installation, for each of the three ways to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dataset", "rendering", "scoring", "analytics", "cli")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Runs in the fresh environment, isolated from this checkout: which names can be imported, and from where.
PROBE = """
import importlib.metadata, importlib.util, json, pathlib, sys
found = importlib.util.find_spec
rooms, top_level = sys.argv[1].split(), sys.argv[2].split()
print(json.dumps({
    "folders": {room: list(found(f"tokscore.{room}").submodule_search_locations) for room in rooms},
    "top_level": [name for name in top_level if found(name) is not None],
    "version": importlib.metadata.version("tokscore"),
    "scripts": {e.name: e.value for e in importlib.metadata.distribution("tokscore").entry_points},
    "main": found("tokscore.__main__") is not None,
    "script_file": (pathlib.Path(sys.executable).parent / "tokscore").is_file(),
}))
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Standard output of a command that has to succeed."""
    completed = subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def only_file(directory: Path, pattern: str) -> Path:
    """The one file in directory that matches pattern."""
    (path,) = directory.glob(pattern)
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out)
    return only_file(out, "*.whl")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out)
    return only_file(out, "*.tar.gz")


@pytest.fixture(scope="module")
def wheel_from_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    unpacked, out = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel-from-sdist")
    with tarfile.open(sdist) as tar:
        # Python before 3.11.4 has no filters.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(unpacked)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=only_file(unpacked, "*"))
    return only_file(out, "*.whl")


@pytest.fixture(scope="module")
def editable_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install -e` asks the build backend for."""
    out = tmp_path_factory.mktemp("editable")
    run(sys.executable, "-c", f"import hatchling.build as b; b.build_editable({str(out)!r})")
    return only_file(out, "*.whl")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of an empty environment, into which the tests install one after the other."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    return directory / "bin" / "python"


@pytest.fixture(scope="module", params=["wheel", "wheel_from_sdist", "editable_wheel"])
def installed(
    request: pytest.FixtureRequest, environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Output of the probe after installing: JSON, hence Any."""
    archive: Path = request.getfixturevalue(request.param)
    pip = [sys.executable, "-m", "pip", "--python", str(environment), "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", archive)
    top_level = [*ROOMS, "tests", "examples", "typings", "requirements"]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return json.loads(
        run(environment, "-I", "-c", PROBE, " ".join(ROOMS), " ".join(top_level), cwd=elsewhere)
    )


@pytest.mark.slow
def test_every_room_is_importable_as_tokscore_and_typed(installed: Any) -> None:
    for room in ROOMS:
        (folder,) = map(Path, installed["folders"][room])
        assert (folder / "__init__.py").is_file()
        assert (folder / "py.typed").is_file()


@pytest.mark.slow
def test_nothing_but_tokscore_becomes_importable(installed: Any) -> None:
    assert installed["top_level"] == []


def test_version_is_in_the_metadata(installed: Any) -> None:
    assert installed["version"] == PROJECT["version"]


def test_console_script_is_installed(installed: Any) -> None:
    assert installed["main"]
    assert installed["scripts"]["tokscore"] == PROJECT["scripts"]["tokscore"]
    assert installed["script_file"]


def test_wheels_hold_every_module_of_the_rooms_and_nothing_else(wheel: Path, wheel_from_sdist: Path) -> None:
    modules = {f"tokscore/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    modules |= {"tokscore/__init__.py", "tokscore/__main__.py"}
    for archive in (wheel, wheel_from_sdist):
        names = set(zipfile.ZipFile(archive).namelist())
        assert {name for name in names if name.endswith(".py")} == modules
        assert {name.split("/")[0] for name in names} == {
            "tokscore",
            f"tokscore-{PROJECT['version']}.dist-info",
        }


def test_wheels_hold_what_the_html_report_is_made_of(wheel: Path, wheel_from_sdist: Path) -> None:
    folder = Path("analytics/report/assets")
    assets = {f"tokscore/{folder / path.name}" for path in (ROOT / folder).iterdir()}
    assert len(assets) == 9
    for archive in (wheel, wheel_from_sdist):
        assert assets <= set(zipfile.ZipFile(archive).namelist())


def test_sdist_holds_tests_examples_and_licence(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "examples/conversations.jsonl"} <= names
    assert "tests/packaging/test_packaging.py" in names
    assert not [name for name in names if name.startswith((".venv", "demo-output", "dist"))]


def test_metadata_names_licence_python_and_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"tokscore-{PROJECT['version']}.dist-info/METADATA").decode()
    lines = metadata.splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: <3.14,>=3.11" in lines
    assert {"Provides-Extra: vllm", "Provides-Extra: cpu", "Provides-Extra: dev"} <= set(lines)
    core = [line for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert not [line for line in core if line.split()[1].startswith(("torch", "vllm"))]
