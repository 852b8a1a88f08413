"""Options that say which processes do the work of a run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tokscore.cli.options.shared import option
from tokscore.dataset.choices import Executor

if TYPE_CHECKING:
    from tokscore.rendering.executors.execution import Execution

AUTO = "auto"
_REPLICAS = re.compile(f"[1-9][0-9]{{0,6}}|{AUTO}")
_MIB = 2**20
_MOST_SECONDS = 1e6

ExecutorOption = Annotated[
    Executor,
    option(
        "--executor",
        help="Where parts are worked on: in processes of this machine, in actors of a Ray cluster, or in "
        "tasks of a job array that is submitted to Slurm.",
    ),
]
Replicas = Annotated[
    str | None,
    option(
        "--replicas",
        metavar="N|auto",
        help="Processes that take parts as they get free, the largest first, each with devices of its own or "
        "its share of the cores; auto uses every GPU of the node.",
        show_default="1, in this process; all that a cluster has room for",
    ),
]
StallTimeout = Annotated[
    float | None,
    option(
        "--stall-timeout",
        metavar="SECONDS",
        help="End a replica that makes no progress for so many seconds, starting included, with its stack in "
        "the log, and start it again on what is left.",
        show_default="never",
    ),
]
ReplicaMemory = Annotated[
    int | None,
    option(
        "--replica-memory",
        metavar="MIB",
        min=1,
        help="Most memory of a replica, which is started again above it.",
        show_default="what the host has left",
    ),
]
RayAddress = Annotated[
    str | None,
    option(
        "--ray-address",
        metavar="HOST:PORT|auto",
        help="Ray cluster for --executor ray.",
        show_default="RAY_ADDRESS, else a Ray of this machine that is started and ended",
    ),
]
Tasks = Annotated[
    str | None,
    option(
        "--tasks",
        metavar="N[%K]",
        help="Tasks of the array for --executor slurm, K at once; each works on all GPUs of its node.",
        show_default="1",
    ),
]
Sbatch = Annotated[
    list[str] | None,
    option(
        "--sbatch",
        metavar="NAME=VALUE",
        help="Option of sbatch for --executor slurm, such as partition=gpu, gres=gpu:8 or time=12:00:00; "
        "repeat it for more.",
        show_default=False,
    ),
]
PrintScript = Annotated[
    bool,
    option("--print", help="Print the script for sbatch and submit nothing.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The options of a command that say which processes do its work."""

    executor: ExecutorOption = Executor.LOCAL
    replicas: Replicas = None
    stall_timeout: StallTimeout = None
    replica_memory: ReplicaMemory = None
    ray_address: RayAddress = None
    tasks: Tasks = None
    sbatch: Sbatch = None
    print: PrintScript = False

    def execution(self) -> Execution:
        """How a run is executed.

        Raises:
            UsageError: `replicas` is no number, or an option belongs to another executor.
        """
        from tokscore.dataset.errors import UsageError
        from tokscore.rendering.executors.execution import Execution

        replicas, stall_s, memory_mib = self.replicas, self.stall_timeout, self.replica_memory
        if replicas is not None and not _REPLICAS.fullmatch(replicas):
            raise UsageError(f"`replicas` is {replicas!r}; expected a number from 1 on, or auto.")
        if self.executor is not Executor.SLURM and (self.tasks is not None or self.sbatch or self.print):
            raise UsageError("`tasks`, `sbatch` and `print` are for --executor slurm.")
        if self.ray_address is not None and self.executor is not Executor.RAY:
            raise UsageError("`ray_address` is for --executor ray.")
        if memory_mib is not None and self.executor is not Executor.LOCAL:
            raise UsageError(
                "`replica_memory` is for --executor local; Ray watches the memory of its nodes itself."
            )
        if stall_s is not None and not 0 < stall_s <= _MOST_SECONDS:
            raise UsageError(
                f"`stall_timeout` is {stall_s:g}; expected more than 0 and at most {_MOST_SECONDS:g}."
            )
        is_ray = self.executor is Executor.RAY
        address = self.ray_address or (os.environ.get("RAY_ADDRESS") if is_ray else None)
        # A cluster is used whole.
        n = None if replicas == AUTO or (replicas is None and address) else int(replicas or 1)
        return Execution(
            executor=self.executor,
            replicas=n,
            stall_s=stall_s,
            memory_bytes=None if memory_mib is None else memory_mib * _MIB,
            ray_address=address,
        )
