"""One replica: a process that takes parts while there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.claims.claim import LEASE_S
from tokscore.dataset.claims.claiming import Claims
from tokscore.rendering.executors.heart import Heart, LostPartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.rendering.executors.work import Outcome, Tell, Work, Worker


class Order(NamedTuple):
    """What one replica is told.

    Attributes:
        work: What to do with a part.
        parts: Indices of the parts that are open, in the order in which they are to be taken.
        name: Of the replica.
        stall_s: Seconds without progress after which it ends itself; None for never.
        lease_s: Seconds without a heartbeat after which others take its part.
        waits: Whether it stays until the parts of others are done, to take over those of a lost one.
    """

    work: Work
    parts: Sequence[int]
    name: str
    stall_s: float | None = None
    lease_s: float = LEASE_S
    waits: bool = True


class Events(NamedTuple):
    """What a replica reports.

    Attributes:
        done: Called with each part that it finished, and its outcome.
        tell: Called with lines for the user.
        working: Called about every second with the tokens of the part in hand; from a thread.
    """

    done: Callable[[int, Outcome], None]
    tell: Tell
    working: Callable[[int], None] | None = None


class Replica:
    """Works on parts in this process; its worker, with what it has loaded, stays from part to part."""

    def __init__(self, order: Order, events: Events) -> None:
        self._order, self._events = order, events
        work = order.work
        self._claims = Claims(work.out, work.manifest.kind.value, order.name, lease_s=order.lease_s)
        self._worker: Worker | None = None

    def run(self) -> None:
        """Take parts until none is left, or one is in doubt.

        Raises:
            TokscoreError: The run has to end; the part is let go.
        """
        order = self._order
        with Heart(self._claims, order.stall_s, self._events.working) as heart:
            self._take(heart, self._claims.parts(order.parts, others=order.waits))

    def run_one(self, part: int) -> None:
        """Work on one part where nobody else does, when all that have it ended without finishing it.

        Raises:
            TokscoreError: As for `run`.
        """
        order = self._order
        with Heart(self._claims, order.stall_s, self._events.working) as heart:
            self._take(heart, self._claims.parts([part], others=order.waits))

    def _take(self, heart: Heart, parts: Iterable[int]) -> None:
        work = self._order.work
        for index in parts:
            heart.begin()
            n_tokens: int | None = None
            try:
                if self._worker is None:
                    self._worker = work.start(self._events.tell)
                outcome = self._worker.run(work.manifest.parts[index], heart.seen)
                n_tokens = int(outcome.counts.get("n_tokens", 0))
            except LostPartError:
                self._events.tell(f"part {index} was taken over by another process; this one lets it go.")
                continue
            finally:
                self._claims.release(n_tokens)
                heart.rest()
            self._events.done(index, outcome)
            if outcome.doubt is not None:
                return

    def close(self) -> None:
        """Give back what the worker holds."""
        if self._worker is not None:
            self._worker.close()
