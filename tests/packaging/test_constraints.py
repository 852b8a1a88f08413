"""The releases that `make demo` and `make test` install: those of one set, for every Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import unavailable

CONSTRAINTS = Path(__file__).parents[2] / "requirements" / "constraints.txt"


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_no_release_asks_for_another_than_is_named(python: str, tmp_path: Path) -> None:
    # pip is asked for the builds of each Python, which need not be those of this environment: one without
    # CUDA, for one, asks for no Triton.
    report = tmp_path / "report.json"
    asked = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
    ]
    of_python = ["--python-version", python, "--only-binary=:all:", "--target", str(tmp_path / "none")]
    command = [*asked, *of_python, "--report", str(report), "--requirement", str(CONSTRAINTS)]
    completed = subprocess.run(command, text=True, capture_output=True, check=False)
    if "NewConnectionError" in completed.stderr:
        unavailable("the package index cannot be reached")
    assert completed.returncode == 0, completed.stderr
    releases = [release["metadata"] for release in json.loads(report.read_text("utf-8"))["install"]]
    versions = {canonicalize_name(release["name"]): release["version"] for release in releases}
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    refused = [
        f"{release['name']} {release['version']} asks for {text}"
        for release in releases
        for text in release.get("requires_dist", [])
        if (need := Requirement(text)).marker is None or need.marker.evaluate(environment)
        if (version := versions.get(canonicalize_name(need.name))) and version not in need.specifier
    ]
    assert len(releases) > 40
    assert refused == []
