"""How a run is executed, and its parts handed to that executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokscore.dataset.choices import Executor
from tokscore.dataset.claims.claim import LEASE_S
from tokscore.dataset.claims.claiming import clear
from tokscore.dataset.writing import remove_abandoned
from tokscore.rendering.executors.devices import environments
from tokscore.rendering.executors.local import LocalReplicas
from tokscore.rendering.executors.memory import MemoryWatch
from tokscore.rendering.executors.on_ray import run_on_ray
from tokscore.rendering.executors.replica import Order
from tokscore.rendering.executors.work import largest_first

if TYPE_CHECKING:
    from tokscore.dataset.manifest import Part
    from tokscore.rendering.executors.work import Progress, Tell, Totals, Work


@dataclass(frozen=True)
class Execution:
    """Where the parts of a run are worked on, and by how many.

    Attributes:
        executor: Kind of the processes.
        replicas: How many; None for as many as the devices allow.
        stall_s: Seconds without progress after which a replica is ended and started again; None for never.
        memory_bytes: Most memory of a replica; None for what the host has.
        lease_s: Seconds without a heartbeat after which the part of a replica on another host is taken over.
        ray_address: Of a Ray cluster; None for a Ray of this machine alone.
    """

    executor: Executor = Executor.LOCAL
    replicas: int | None = 1
    stall_s: float | None = None
    memory_bytes: int | None = None
    lease_s: float = LEASE_S
    ray_address: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether this process does it all, with nobody to watch it."""
        return (self.executor, self.replicas, self.stall_s, self.memory_bytes) == (
            Executor.LOCAL,
            1,
            None,
            None,
        )

    def run(
        self,
        work: Work,
        parts: Sequence[Part],
        sizes: Mapping[int, int],
        *,
        gpus_each: int,
        progress: Progress,
        tell: Tell,
    ) -> Totals:
        """Work on the parts; those that are done or that others hold are left alone.

        Args:
            work: What to do with each.
            parts: Open ones.
            sizes: Of each part, by index, in any unit.
            gpus_each: Devices of one replica.
            progress: Called with parts and tokens done.
            tell: Called with lines for the user.

        Returns:
            Counts of what was done, up to where ids were in doubt: then the parts of this run are to be
            made again.

        Raises:
            TokscoreError: A replica met an error, or replicas end again and again.
        """
        clear(work.out, {part.index for part in parts})
        order = Order(work, largest_first(parts, sizes), "", self.stall_s, self.lease_s)
        # No more than there are parts.
        n_replicas = None if self.replicas is None else min(self.replicas, max(len(parts), 1))
        try:
            if self.executor is Executor.RAY:
                return run_on_ray(order, n_replicas, gpus_each, self.ray_address, progress, tell)
            return self._run_here(order, n_replicas, gpus_each, progress, tell)
        finally:
            remove_abandoned(work.out)  # by replicas that were killed

    def _run_here(
        self, order: Order, n_replicas: int | None, gpus_each: int, progress: Progress, tell: Tell
    ) -> Totals:
        places = environments(n_replicas, gpus_each)[: max(len(order.parts), 1)]
        orders = [order._replace(name=f"local {number}") for number in range(len(places))]
        if len(orders) > 1:
            tell(f"{len(orders)} replicas work on {len(order.parts):,} parts.")
        totals = LocalReplicas(orders, places, MemoryWatch(self.memory_bytes), progress, tell).run()
        totals.n_replicas = len(orders)
        return totals


HERE = Execution()
