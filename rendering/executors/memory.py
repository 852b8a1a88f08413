"""Memory of the host, watched, so that a replica ends by our hand and not a process by that of the system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# Of the memory that this job may use; below it, the system begins to end processes.
LEAST_SHARE = 0.03
_MIB = 2**20


class TooLarge(NamedTuple):
    """A replica that has to go.

    Attributes:
        pid: Its process.
        reason: In words.
    """

    pid: int
    reason: str


@dataclass(frozen=True)
class MemoryWatch:
    """When a replica is ended for its memory.

    Attributes:
        limit_bytes: Most that a replica and what it started may have; None for what the host has.
    """

    limit_bytes: int | None = None

    def too_large(self, leaders: Sequence[int]) -> TooLarge | None:
        """The largest of some replicas, where it is over the limit or the host has next to nothing left.

        Args:
            leaders: Process ids, each that of its group.
        """
        if not leaders:
            return None
        host = _host_memory()
        is_short = host is not None and host.left < host.total * LEAST_SHARE
        if self.limit_bytes is None and not is_short:
            return None
        sizes = group_bytes(leaders)
        largest = max(leaders, key=lambda pid: sizes.get(pid, 0))
        size = sizes.get(largest, 0)
        if self.limit_bytes is not None and size > self.limit_bytes:
            words = (
                f"{size / _MIB:,.0f} MiB of memory, --replica-memory allows {self.limit_bytes / _MIB:,.0f}"
            )
            return TooLarge(largest, f"it had {words}")
        if is_short and host is not None:
            return TooLarge(
                largest,
                f"{host.left / _MIB:,.0f} of {host.total / _MIB:,.0f} MiB of memory were left, and it had "
                f"{size / _MIB:,.0f}",
            )
        return None


class _Memory(NamedTuple):
    left: int
    total: int


def _host_memory() -> _Memory | None:
    """What is left of the host's memory or of that of this job's control group, whichever is less.

    Source:
        proc(5), MemAvailable; Documentation/admin-guide/cgroup-v2.rst, memory.max, memory.current and
        inactive_file, which the kernel takes back first.
    """
    found: list[_Memory] = []
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        left, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
        found.append(_Memory(left, total))
    with suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        folder = Path("/sys/fs/cgroup") / group
        total = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in (folder / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
        found.append(_Memory(total - used + cached, total))
    return min(found, key=lambda memory: memory.left / max(memory.total, 1), default=None)


def group_bytes(leaders: Sequence[int]) -> dict[int, int]:
    """Resident bytes of all processes of each group, by the id of its leader; empty where nothing tells.

    Source:
        proc(5): fields 5 and 24 of /proc/PID/stat.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = dict.fromkeys(leaders, 0)
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = place.read_text().rpartition(")")[2].split()
            group = int(fields[2])
            if group in sizes:
                sizes[group] += int(fields[21]) * page
    return sizes
