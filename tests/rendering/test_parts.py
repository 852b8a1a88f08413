"""Files that are written aside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tokscore.rendering.parts import remove_abandoned, temporary_name

NAMING = (
    "import sys, pathlib, tokscore.rendering.parts as p; print(p.temporary_name(pathlib.Path(sys.argv[1])))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces of process ids")
def test_only_files_of_ended_processes_that_can_be_seen_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    finished = subprocess.run(
        [sys.executable, "-c", NAMING, path], capture_output=True, text=True, check=True
    )
    abandoned = Path(finished.stdout.strip())
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    assert namespace in abandoned.name
    # A container of the same host name has the same process ids, and its processes cannot be seen.
    in_container = abandoned.with_name(abandoned.name.replace(namespace, f"{namespace}1"))
    own = temporary_name(path)
    for each in (abandoned, in_container, own):
        each.touch()
    remove_abandoned(tmp_path)
    assert {*tmp_path.iterdir()} == {in_container, own}
