"""Processes of this machine, told apart from those of other machines, containers and boots."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def this_host() -> str:
    """The host, and which processes a process id is one of: containers may share the name of a host.

    Source:
        proc(5): the boot id is new whenever a kernel starts; namespaces(7): processes whose /proc/PID/ns/pid
        is the same inode are in the same namespace of process ids.
    """
    places = [socket.gethostname()]
    with suppress(OSError):  # only Linux has both
        places += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()]
        places += [str(Path("/proc/self/ns/pid").stat().st_ino)]
    return "-".join(places)


def is_running(process: int) -> bool:
    """Whether a process of this host runs; one that ended and was not waited for does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    found = _stat(process)
    return found is None or found[0] not in ("Z", "X")


def start_of(process: int) -> int:
    """Ticks from boot to the start of a process, as its id is given again later; 0 where nobody says."""
    found = _stat(process)
    return 0 if found is None else int(found[19])


def _stat(process: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third, the state, on; proc(5)."""
    with suppress(OSError, UnicodeDecodeError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return None
