"""Parts taken one at a time, each by one of the processes that work on a dataset."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from threading import Lock
from typing import NamedTuple

import msgspec

from tokscore.dataset.claims.claim import LEASE_S, Claim, FailedPart, FoundClaims, named_parts, read_from
from tokscore.dataset.claims.commit import CLAIMS, finished_names
from tokscore.dataset.claims.files import ClaimFiles
from tokscore.dataset.claims.processes import is_running, start_of, this_host

HEARTBEATS_A_LEASE = 6
# Processes that may end with a part in hand, while their host goes on, before it is set aside.
MAX_ATTEMPTS = 5
# The same, with those that fell silent on other hosts. Most of these were taken away with their node, which
# says nothing about the part; but one that takes nodes with it has to end, too.
MAX_LOST = 20
# Owners that a process looks for at once, chosen by chance: where every process looks for all, the files that
# are read grow with the square of their number.
OWNERS_A_LOOK = 64
# Parts that others turned out to have, one after the other, before more and more of the next are left out:
# where very many processes take parts in one order, most of a listing is done by the time it is used.
MISSES_BEFORE_LEAPS = 8
# And before the list is made again; as many as there are others, where these are more.
MISSES_BEFORE_LISTING = 32
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
        self._lock = Lock()  # a thread may beat while another lets go

    def take(self, part: int) -> bool:
        """Claim one part; False where another process works on it, it is done, or it was set aside."""
        if self.is_done(part):  # most that others had, at the price of one look
            return False
        found = read_from(self._files, [part])
        if part in found.failed:
            return False
        before = found.claims.get(part)
        attempt, n_ends = 1, 0
        if before is not None:
            if not self.has_ended(before):
                return False
            attempt, n_ends = before.attempt + 1, before.n_ends + (before.namespace == this_host())
            if n_ends >= MAX_ATTEMPTS or attempt > MAX_LOST:
                self.give_up(part, f"{before.attempt} processes ended while they worked on it")
                self._files.delete(before.name)
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
            n_ends=n_ends,
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
            return not is_owner_running(claim)
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
        with self._lock:
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
        with self._lock:
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

    def parts(self, wanted: Sequence[int], *, others: bool = True, seed: int | None = None) -> Iterator[int]:
        """Claimed parts, one after the other; each is to be released before the next is asked for.

        Those that others hold are looked at again at the end, until they are done or their owner has ended.

        Args:
            wanted: Indices, in the order in which they are to be taken.
            others: Whether to wait for parts that others hold.
            seed: For the choice among the next parts where several processes ask at once.
        """
        chance = Random(os.getpid() if seed is None else seed)  # noqa: S311
        left, open_parts = wanted, {*wanted}
        while left:
            done = finished_names(self._root, self._table, left)
            named = named_parts(self._files)
            gone = done | named.failed
            open_parts -= gone
            left = [part for part in left if part in open_parts] if gone else left
            claimed = sorted(named.claimed & open_parts)
            looked_at = chance.sample(claimed, min(len(claimed), OWNERS_A_LOOK))
            busy = {*claimed}.difference(self._without_owner(looked_at))
            has_free = len(busy) < len(left)
            if not has_free and (not others or not busy):
                return
            lost = {*claimed} - busy
            free = (part for part in left if part not in busy)
            yield from self._taken(free, lost, n_others=len(named.claimed), chance=chance)
            if not has_free:
                # However many processes wait, they look as often together.
                time.sleep(WAIT_S * max(1, len(claimed) / OWNERS_A_LOOK))

    def _without_owner(self, claimed: Collection[int]) -> set[int]:
        """Those of some parts whose owner has let go of them or has ended."""
        claims = read_from(self._files, claimed).claims if claimed else {}
        return {part for part in claimed if part not in claims or self.has_ended(claims[part])}

    def _taken(
        self, free: Iterator[int], lost: Collection[int], *, n_others: int, chance: Random
    ) -> Iterator[int]:
        """Those of the parts that this process gets, before the listing is too old to go on with it.

        Args:
            free: That nobody worked on when they were listed.
            lost: Those of them whose owner has ended.
            n_others: Processes that work on parts.
            chance: Chooses.
        """
        # Processes that ask at once do not all ask for the same.
        n_window = 1 + 2 * n_others
        window: list[int] = []
        n_missed = 0
        claimed: set[int] = set()
        while n_missed <= max(n_others, MISSES_BEFORE_LISTING):
            window += islice(free, n_window - len(window))
            if not window:
                return
            part = window.pop(chance.randrange(len(window)))
            if part in claimed:
                continue
            if self.take(part):
                n_missed = 0
                yield part
                assert self.held is None, "a part is released before the next is taken"
                # Time has passed.
                claimed = named_parts(self._files).claimed.difference(lost)
            else:
                n_missed += 1
                # They stay in the list, and are looked at again when this one is at its end.
                n_left_out = 2 ** max(n_missed - MISSES_BEFORE_LEAPS, 0) - 1
                del window[:n_left_out]


def clear(root: Path, unfinished: Collection[int]) -> None:
    """Remove what says that parts failed, or are worked on by processes of this host that have ended.

    Where no part is open, all of `claims/` goes.

    Args:
        root: The dataset.
        unfinished: Its parts that are not done.
    """
    files = ClaimFiles(root / CLAIMS)
    if not unfinished:
        files.clear()
        return
    found = read_from(files)
    for failed in found.failed.values():
        files.delete(failed.name)
    for claim in found.claims.values():
        if claim.namespace == this_host() and not is_owner_running(claim):
            files.delete(claim.name)


def is_owner_running(claim: Claim) -> bool:
    """Whether the process of a claim of this host runs; another may have its id by now."""
    return is_running(claim.pid) and (not claim.pid_start or start_of(claim.pid) in (0, claim.pid_start))
