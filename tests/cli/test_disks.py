"""Disks that are full, or on which nothing may be written."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import unavailable

# Mounts a disk that nobody else sees, which takes no rights where users may have namespaces.
ALONE = ["unshare", "--map-root-user", "--mount", "sh", "-euc"]
FULL = "mount -t tmpfs -o size=192k disk $DISK"
READ_ONLY = "mount -t tmpfs -o ro disk $DISK"
MORE = "mount -o remount,rw,size=64m disk $DISK"
COMMAND = """
DISK=$1; shift
code=0
%s
"$@" -o $DISK/out || code=$?
find $DISK -name "*part-*" >&2
%s
"$@" -o $DISK/out
exit $code
"""


def is_possible() -> bool:
    return subprocess.run([*ALONE, "mount -t tmpfs x /mnt"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="mounts of its own are Linux's")
@pytest.mark.parametrize(
    ("disk", "message"), [(FULL, "No space left on device"), (READ_ONLY, "Read-only file system")]
)
@pytest.mark.slow
def test_a_disk_that_takes_nothing_leaves_no_part_and_the_command_goes_on_when_it_does(
    tiny_model: Path, tmp_path: Path, disk: str, message: str
) -> None:
    if not is_possible():
        unavailable(
            "`unshare` gives no mounts of its own here; it is Linux's, and takes root or user namespaces"
        )
    chance = random.Random(0)
    records = [{"messages": [{"role": "user", "content": chance.randbytes(400).hex()}]} for _ in range(200)]
    (tmp_path / "convs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "tokscore.cli.main", "render", str(tmp_path / "convs.jsonl"), "-m"]
    finished = subprocess.run(
        [*ALONE, COMMAND % (disk, MORE), "sh", str(tmp_path / "disk"), *command, str(tiny_model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    before, _, after = finished.stderr.partition("error: ")
    assert finished.returncode == 1, finished.stderr
    assert message in after.splitlines()[0]
    assert "Traceback" not in finished.stderr
    assert "part-" not in after.replace(after.splitlines()[0], ""), "nothing of a part is left"
    assert "wrote " not in before
    assert "wrote " in after
