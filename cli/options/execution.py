"""Options that say which processes do the work of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from tokscore.cli.options.shared import option
from tokscore.dataset.choices import Executor

if TYPE_CHECKING:
    from tokscore.rendering.executors.execution import Execution

AUTO = "auto"
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


def execution_of(
    executor: Executor,
    replicas: str | None,
    stall_timeout: float | None,
    replica_memory: int | None,
    ray_address: str | None,
    tasks: str | None,
    sbatch: Sequence[str] | None,
    print_script: bool,
) -> Execution:
    """How a run is executed.

    Raises:
        UsageError: `replicas` is no number, or an option belongs to another executor.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.rendering.executors.execution import Execution

    if replicas is not None and replicas != AUTO and not (replicas.isascii() and replicas.isdigit()):
        raise UsageError(f"`replicas` is {replicas!r}; expected a number from 1 on, or auto.")
    if executor is not Executor.SLURM and (tasks is not None or sbatch or print_script):
        raise UsageError("`tasks`, `sbatch` and `print` are for --executor slurm.")
    if ray_address is not None and executor is not Executor.RAY:
        raise UsageError("`ray_address` is for --executor ray.")
    if replica_memory is not None and executor is not Executor.LOCAL:
        raise UsageError(
            "`replica_memory` is for --executor local; Ray watches the memory of its nodes itself."
        )
    if stall_timeout is not None and not 0 < stall_timeout <= _MOST_SECONDS:
        raise UsageError(
            f"`stall_timeout` is {stall_timeout:g}; expected more than 0 and at most {_MOST_SECONDS:g}."
        )
    # A cluster is used whole.
    n = None if replicas == AUTO or (replicas is None and ray_address) else int(replicas or 1)
    if n == 0:
        raise UsageError("`replicas` is 0; expected a number from 1 on, or auto.")
    return Execution(
        executor=executor,
        replicas=n,
        stall_s=stall_timeout,
        memory_bytes=None if replica_memory is None else replica_memory * _MIB,
        ray_address=ray_address,
    )
