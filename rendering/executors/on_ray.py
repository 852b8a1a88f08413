"""Replicas as actors of Ray Data: where they run, and again after they ended, is Ray's to say."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NamedTuple

from tokscore.dataset.errors import EngineError, TokscoreError, foreign
from tokscore.rendering.executors.devices import all_cores
from tokscore.rendering.executors.replica import Events, Order, Replica
from tokscore.rendering.executors.work import Totals

if TYPE_CHECKING:
    import pyarrow as pa

    from tokscore.rendering.executors.work import Outcome, Progress, Tell

# Of Ray's object store on this machine; part numbers go through it, and counts.
_STORE_BYTES = 100 << 20
# Longest folder for temporary files under which the paths of Ray's sockets have the 107 bytes that they may.
_LONGEST_TEMPORARY = 36
_VARIABLES = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
_PART, _REPORT = "part", "report"


class Report(NamedTuple):
    """What an actor says of one part.

    Attributes:
        part: Its index.
        outcome: None where another process did it, or nobody does.
        lines: For the user.
        error: Ends the run.
    """

    part: int
    outcome: Outcome | None
    lines: Sequence[str]
    error: TokscoreError | OSError | None


class RayActor:
    """A replica that is given one part at a time."""

    def __init__(self, order: bytes) -> None:
        # What libraries print belongs to the log.
        os.dup2(2, 1)
        self._lines: list[str] = []
        self._outcomes: list[Outcome] = []
        name = f"ray {os.uname().nodename} {os.getpid()}"
        events = Events(done=lambda _part, outcome: self._outcomes.append(outcome), tell=self._lines.append)
        told: Order = pickle.loads(order)  # noqa: S301  # the driver wrote it
        self._replica = Replica(told._replace(name=name), events)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The report on the one part of a batch, pickled."""
        import pyarrow as pa

        self._lines.clear()
        self._outcomes.clear()
        part, error = batch[_PART][0].as_py(), None
        try:
            self._replica.run_one(part)
        except (TokscoreError, OSError) as caught:
            error = caught
        outcome = self._outcomes[0] if self._outcomes else None
        report = Report(part, outcome, [*self._lines], error)
        return pa.table({_REPORT: pa.array([pickle.dumps(report)], pa.binary())})


def run_on_ray(
    order: Order,
    n_replicas: int | None,
    gpus_each: int,
    address: str | None,
    progress: Progress,
    tell: Tell,
) -> Totals:
    """Have actors work on the parts of an order.

    Args:
        order: What each of them is told.
        n_replicas: How many; None for as many as the cluster has room for, which may grow.
        gpus_each: Devices of one, where the cluster has any.
        address: Of a cluster; None for a Ray that is started on this machine and ended.
        progress: Called with parts and tokens done.
        tell: Called with lines for the user.

    Raises:
        TokscoreError: An actor said that the run has to end.
        EngineError: Ray is not installed.
    """
    totals = Totals()
    with _connected(address, n_replicas) as ray:
        has_gpus = gpus_each > 0 and ray.cluster_resources().get("GPU", 0) > 0
        pool: dict[str, int] = (
            {"min_size": 1, "max_size": len(order.parts)} if n_replicas is None else {"size": n_replicas}
        )
        # One part a block: it is the unit that Ray hands out, and makes again.
        parts = ray.data.from_items(
            [{_PART: part} for part in order.parts], override_num_blocks=len(order.parts)
        )
        reports = parts.map_batches(
            RayActor,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(**pool, max_tasks_in_flight_per_actor=1),
            # Not in the object store, which may be gone when an actor is started again.
            fn_constructor_args=[pickle.dumps(order._replace(parts=()))],
            num_gpus=gpus_each if has_gpus else None,
            num_cpus=1,
            runtime_env={"env_vars": _VARIABLES},
        )
        for row in reports.iter_rows():
            # Only the actors of this run wrote it.
            report: Report = pickle.loads(row[_REPORT])  # noqa: S301
            for line in report.lines:
                tell(line)
            if report.error is not None:
                raise report.error
            if report.outcome is not None:
                totals.add(report.outcome)
                progress(totals.n_parts, totals.count("n_tokens"))
            if totals.doubt is not None:
                break
    return totals


@contextmanager
def _connected(address: str | None, n_replicas: int | None) -> Iterator[Any]:  # Any: Ray has no types here
    # Nothing of a run is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors that do the work of the machine do not wait for everything else on it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise EngineError(
            f"`executor` ray needs Ray: {error}. Install it with: pip install 'tokscore[ray]'"
        ) from error
    address = address or os.environ.get("RAY_ADDRESS")
    local: dict[str, Any] = {  # Any: settings of several kinds
        "address": "local",
        "num_cpus": max(all_cores(), n_replicas or 1),
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
    }
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TEMPORARY and "RAY_TMPDIR" not in os.environ:
        local["_temp_dir"] = f"/tmp/ray-{os.getuid()}"  # noqa: S108  each run has a folder in it
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**({"address": address} if address else local), logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError(f"Ray does not start here: {foreign(error).strip().splitlines()[0]}") from error
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own in place
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield ray
    finally:
        ray.shutdown()
