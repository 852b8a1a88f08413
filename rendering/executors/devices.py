"""The devices of this node, divided among replicas."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from tokscore.dataset.errors import UsageError, agreeing, counted


def all_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Ids of the CUDA devices that this process may use.

    Source:
        CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES: the list ends at the first that is none.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        stop = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:stop]
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return listed.stdout.split()
    return []


def environments(n_replicas: int | None, gpus_each: int) -> list[dict[str, str]]:
    """Variables of each replica: devices of its own, or its share of the cores.

    Args:
        n_replicas: How many; None for as many as the devices of the node allow, one without any.
        gpus_each: Devices that one replica uses together, where there are any; 0 for work without.

    Raises:
        UsageError: There are fewer devices than that.
    """
    gpus = visible_gpus() if gpus_each else []
    n_fit = len(gpus) // max(gpus_each, 1)
    if gpus and not n_fit:
        raise UsageError(f"a replica needs {counted(gpus_each, 'GPU')}, and this node has {len(gpus)}.")
    n = n_replicas or n_fit or 1
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(all_cores() // n, 1))}
    # fastokens looks at the second one.
    threads |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    if not gpus:
        return [threads] * n
    if n > n_fit:
        raise UsageError(
            f"{counted(n, 'replica')} with {counted(gpus_each, 'GPU')} each {agreeing(n, 'needs', 'need')} "
            f"{counted(n * gpus_each, 'GPU')}, and this node has {len(gpus)}. Leave out "
            "`replicas`, and as many run as fit."
        )
    return [
        threads | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * gpus_each : (i + 1) * gpus_each])}
        for i in range(n)
    ]
