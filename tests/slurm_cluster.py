"""A real Slurm on this machine: munged, slurmctld and slurmd of Debian, with ports, keys and files of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=30
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def is_possible() -> bool:
    """Whether this machine has Slurm, and this process may start it."""
    # Debian keeps them where only root looks.
    return os.geteuid() == 0 and all(_path(name) for name in PROGRAMS)


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Start it, with everything that it writes in `folder`; yields its configuration, for SLURM_CONF."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname(),
            cores=os.cpu_count(),
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files],
        ["slurmctld", "-D", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration)],
    ]
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    try:
        for name, *arguments in commands:
            with (folder / f"{name}.out").open("wb") as out:
                started.append(
                    subprocess.Popen([str(_path(name)), *arguments], stdout=out, stderr=out, env=environment)
                )
            time.sleep(1)
        until = time.monotonic() + 60
        while "idle" not in _states(environment):
            assert time.monotonic() < until, [path.read_text()[-2_000:] for path in folder.glob("*.out")]
            time.sleep(0.2)
        yield configuration
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def _states(environment: dict[str, str]) -> str:
    return subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False
    ).stdout
