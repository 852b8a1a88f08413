"""Parts taken one at a time, each by one of the processes that work on a dataset."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from tokscore.dataset.claims.claim import Claim, FailedPart, FoundClaims, read_from
from tokscore.dataset.claims.commit import CLAIMS, finished_names
from tokscore.dataset.claims.files import ClaimFiles
from tokscore.dataset.claims.processes import is_running, start_of, this_host

# Seconds without a heartbeat before others take a part, and between heartbeats.
LEASE_S = 60.0
HEARTBEATS_A_LEASE = 6
# Processes that may end with a part in hand before it is set aside.
MAX_ATTEMPTS = 5
# Between looks for parts whose owner has ended.
WAIT_S = 2.0


class _Seen(NamedTuple):
    heartbeat: float
    at_s: float


class Claims:
    """What one process holds of the parts of a dataset, and what others do.

    Whether an owner still works is told without comparing clocks: on this host its process is looked for; of
    another host, its heartbeat has to stand still for a lease by the clock of this process.
    """

    def __init__(self, root: Path, table: str, replica: str = "", *, lease_s: float = LEASE_S) -> None:
        """Work on parts of the dataset in `root`.

        Args:
            root: The dataset.
            table: The one that marks a part done: tokens or scores.
            replica: What the run calls this process.
            lease_s: Seconds without a heartbeat after which others may take a part of this process.
        """
        self._root, self._table = root, table
        self._files = ClaimFiles(root / CLAIMS)
        self._replica = replica
        self.lease_s = lease_s
        self._started = 0.0
        self._n_parts = self._n_tokens = 0
        self._seen: dict[str, _Seen] = {}
        self.held: Claim | None = None

    def take(self, part: int) -> bool:
        """Claim one part; False where another process works on it, it is done, or it was set aside."""
        found = read_from(self._files, [part])
        if part in found.failed:
            return False
        before = found.claims.get(part)
        attempt = 1
        if before is not None:
            if not self.has_ended(before):
                return False
            attempt = before.attempt + 1
            if attempt > MAX_ATTEMPTS:
                self.give_up(part, f"{MAX_ATTEMPTS} processes ended while they worked on it")
                return False
        now = time.time()
        self._started = self._started or now
        claim = Claim(
            part=part,
            attempt=attempt,
            host=socket.gethostname(),
            namespace=this_host(),
            pid=os.getpid(),
            pid_start=start_of(os.getpid()),
            replica=self._replica,
            started=now,
            heartbeat=now,
            lease_s=self.lease_s,
            n_tokens_before=self._n_tokens,
            n_parts_before=self._n_parts,
            replica_started=self._started,
        )
        if not self._files.create(claim.name, msgspec.json.encode(claim)):
            return False
        if before is not None:
            self._files.delete(before.name)
        self.held = claim
        # Only now can nobody else have finished it without being seen.
        if self.is_done(part):
            self.release()
            return False
        return True

    def is_done(self, part: int) -> bool:
        """Whether a part is in place."""
        return part in finished_names(self._root, self._table, [part])

    def has_ended(self, claim: Claim) -> bool:
        """Whether the owner of a claim works no more, as far as this process has seen."""
        if claim.namespace == this_host():
            started = start_of(claim.pid)
            return not is_running(claim.pid) or (claim.pid_start and started) not in (0, claim.pid_start)
        now = time.monotonic()
        seen = self._seen.get(claim.name)
        if seen is None or seen.heartbeat != claim.heartbeat:
            self._seen[claim.name] = _Seen(claim.heartbeat, now)
            return False
        return now - seen.at_s > claim.lease_s

    def beat(self, n_tokens: int) -> bool:
        """Say that the part in hand is worked on; False where another process has it by now.

        Args:
            n_tokens: Tokens of it done so far.
        """
        held = self.held
        if held is None:
            return True
        latest = read_from(self._files, [held.part]).claims.get(held.part)
        if latest is None or latest.attempt != held.attempt:
            return False
        told = msgspec.structs.replace(held, heartbeat=time.time(), n_tokens=n_tokens)
        self._files.replace(told.name, msgspec.json.encode(told))
        return True

    def release(self, n_tokens: int | None = None) -> None:
        """Let go of the part in hand.

        Args:
            n_tokens: Tokens of it, where it is done.
        """
        held, self.held = self.held, None
        if held is None:
            return
        if n_tokens is not None:
            self._n_parts, self._n_tokens = self._n_parts + 1, self._n_tokens + n_tokens
        self._files.delete(held.name)

    def give_up(self, part: int, reason: str) -> None:
        """Set a part aside, so that nobody takes it again in this run."""
        failed = FailedPart(part=part, reason=reason)
        self._files.replace(failed.name, msgspec.json.encode(failed))

    def found(self) -> FoundClaims:
        """The claims of all processes."""
        return read_from(self._files)

    def parts(self, wanted: Iterable[int], *, others: bool = True, seed: int | None = None) -> Iterator[int]:
        """Claimed parts, one after the other; each is to be released before the next is asked for.

        Those that others hold are looked at again at the end, until they are done or their owner has ended.

        Args:
            wanted: Indices, in the order in which they are to be taken.
            others: Whether to wait for parts that others hold.
            seed: For the choice among the next parts where several processes ask at once.
        """
        chance = Random(os.getpid() if seed is None else seed)  # noqa: S311
        open_parts = [*wanted]
        while open_parts:
            done = finished_names(self._root, self._table, open_parts)
            found = self.found()
            left = [part for part in open_parts if part not in done and part not in found.failed]
            busy = {part for part in left if part in found.claims and not self.has_ended(found.claims[part])}
            free = [part for part in left if part not in busy]
            if not free and (not others or not busy):
                return
            yield from self._taken(free, n_others=len(found.claims), chance=chance)
            if not free:
                time.sleep(WAIT_S)
            open_parts = left

    def _taken(self, free: list[int], *, n_others: int, chance: Random) -> Iterator[int]:
        """Those of the parts that this process gets, before the listing is too old to go on with it."""
        free = free[::-1]
        n_missed = 0
        while free and n_missed <= n_others:
            # Processes that ask at once do not all ask for the same.
            window = min(len(free), 1 + 2 * n_others)
            part = free.pop(-1 - chance.randrange(window))
            if self.take(part):
                n_missed = 0
                yield part
                assert self.held is None, "a part is released before the next is taken"
            else:
                n_missed += 1


def clear(root: Path, unfinished: Collection[int]) -> None:
    """Remove what says that parts failed, and `claims/` where no part is open.

    Args:
        root: The dataset.
        unfinished: Its parts that are not done.
    """
    files = ClaimFiles(root / CLAIMS)
    if not unfinished:
        files.clear()
        return
    for failed in read_from(files).failed.values():
        files.delete(failed.name)
