"""How far an output is: parts done, in work, failed and missing, by whom and how fast, from its files."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tokscore.dataset.claims.claim import Claim, FailedPart, read_claims
from tokscore.dataset.claims.claiming import is_owner_running
from tokscore.dataset.claims.commit import finished_names, part_name
from tokscore.dataset.claims.processes import this_host
from tokscore.dataset.errors import InputError
from tokscore.dataset.files import PathName, location
from tokscore.dataset.manifest import Manifest, Part, read_manifest
from tokscore.dataset.stores.path import modified_s
from tokscore.dataset.table_files import TableFile

# Footers that are read to tell how many tokens parts have; of more parts these stand for the rest.
SAMPLED_PARTS = 64


class State(StrEnum):
    """What is known of a process that claimed a part."""

    RUNNING = "running"
    SILENT = "silent"  # no heartbeat for longer than its lease, by the clock of this machine
    ENDED = "ended"  # a process of this machine that is there no more


class Replica(NamedTuple):
    """A process that works on the output.

    Attributes:
        name: What the run calls it; empty where it has no name.
        host: Its machine.
        pid: Its process there.
        state: Whether it works.
        part: In hand.
        attempt: The how many-th process that has that part.
        n_parts: Parts that it finished before.
        n_tokens: Tokens of these and of the part in hand.
        tokens_per_s: Since its start; None at first.
        heartbeat_s: Seconds since it last said that it works, by the clock of this machine.
    """

    name: str
    host: str
    pid: int
    state: State
    part: int
    attempt: int
    n_parts: int
    n_tokens: int
    tokens_per_s: float | None
    heartbeat_s: float


class Status(NamedTuple):
    """What the files of an output say.

    Attributes:
        n_parts: Of the plan.
        n_done: In place.
        n_running: In work.
        n_failed: Set aside by this run, since processes ended over them.
        n_missing: None of these.
        n_tokens: Of parts that are done.
        n_tokens_left: Of the others, as far as it can be told: none before a part is done.
        is_estimated: Whether some parts stand for the others in these two numbers.
        tokens_per_s: Of all that run, from the start of each; where none claims parts, as runs without
            replicas do not, from the first part in place to the last.
        tokens_per_s_now: Of all that run, in the part in hand.
        left_s: Seconds at that rate; None where none is known.
        replicas: Those that have a part in hand.
        failed: Parts that were set aside, with the reasons.
    """

    n_parts: int
    n_done: int
    n_running: int
    n_failed: int
    n_missing: int
    n_tokens: int
    n_tokens_left: int | None
    is_estimated: bool
    tokens_per_s: float | None
    tokens_per_s_now: float | None
    left_s: float | None
    replicas: list[Replica]
    failed: list[FailedPart]

    @property
    def is_done(self) -> bool:
        """Whether all parts are in place."""
        return self.n_done == self.n_parts


def status(dataset: PathName) -> Status:
    """How far an output is.

    One listing of its token table, the files in claims/, and the footers of some parts are read, so that it
    takes about a second for 100,000 parts.

    Args:
        dataset: Its folder, or URL.

    Raises:
        InputError: There is no dataset, or its manifest is damaged.
    """
    root = location(dataset)
    manifest = read_manifest(root)
    done = finished_names(root, manifest.kind.value, {part.index for part in manifest.parts})
    found = read_claims(root)
    claims = [claim for part, claim in sorted(found.claims.items()) if part not in done]
    failed = [each for part, each in sorted(found.failed.items()) if part not in done]
    replicas = [_replica(claim) for claim in claims]
    running = [claim for claim, each in zip(claims, replicas, strict=True) if each.state is State.RUNNING]
    n_open = len(manifest.parts) - len(done)
    n_tokens, n_left, is_estimated = _tokens(root, manifest, done)
    rate = _sum(_rate(each.n_tokens + each.n_tokens_before, each.replica_started, each) for each in running)
    if not claims and n_open:
        rate = _rate_of_files(root, manifest, done, n_tokens)
    now = _sum(_rate(each.n_tokens, each.started, each) for each in running)
    in_hand = sum(each.n_tokens for each in running)
    left_s = None
    if n_left is not None and (now or rate):
        left_s = max(n_left - in_hand, 0) / (now or rate or 1.0)
    n_failed = len({each.part for each in failed} - {each.part for each in running})
    return Status(
        n_parts=len(manifest.parts),
        n_done=len(done),
        n_running=len(running),
        n_failed=n_failed,
        n_missing=n_open - len(running) - n_failed,
        n_tokens=n_tokens,
        n_tokens_left=n_left,
        is_estimated=is_estimated,
        tokens_per_s=rate,
        tokens_per_s_now=now,
        left_s=0.0 if not n_open else left_s,
        replicas=replicas,
        failed=failed,
    )


def _replica(claim: Claim) -> Replica:
    heartbeat_s = max(time.time() - claim.heartbeat, 0.0)
    return Replica(
        name=claim.replica,
        host=claim.host,
        pid=claim.pid,
        state=_state(claim, heartbeat_s),
        part=claim.part,
        attempt=claim.attempt,
        n_parts=claim.n_parts_before,
        n_tokens=claim.n_tokens_before + claim.n_tokens,
        tokens_per_s=_rate(claim.n_tokens + claim.n_tokens_before, claim.replica_started, claim),
        heartbeat_s=heartbeat_s,
    )


def _state(claim: Claim, heartbeat_s: float) -> State:
    if claim.namespace == this_host():
        return State.RUNNING if is_owner_running(claim) else State.ENDED
    return State.SILENT if heartbeat_s > claim.lease_s else State.RUNNING


def _rate(n_tokens: int, since: float, claim: Claim) -> float | None:
    """Tokens a second by the clock of the process itself."""
    elapsed_s = claim.heartbeat - since
    return n_tokens / elapsed_s if n_tokens and since and elapsed_s > 0 else None


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _tokens(root: Path, manifest: Manifest, done: Collection[int]) -> tuple[int, int | None, bool]:
    """Tokens of the parts that are done and of the others, and whether they are estimated.

    A part without a size, as the parts of datasets are, counts as any other.
    """
    if not done:
        return 0, None, False
    size_of = {part.index: _size(part, manifest) for part in manifest.parts}
    ordered = sorted(done)
    counted = dict(_n_rows(root, manifest, _sample(ordered)))
    is_all = len(counted) == len(done)
    if not counted:
        return 0, None, False
    per_size = sum(counted.values()) / max(sum(size_of[part] for part in counted), 1)
    n_done = sum(counted.values()) if is_all else round(per_size * sum(size_of[part] for part in ordered))
    n_left = round(per_size * sum(size for part, size in size_of.items() if part not in done))
    return n_done, n_left, not is_all or bool(n_left)


def _sample(ordered: Sequence[int]) -> Sequence[int]:
    """Some of the parts, evenly."""
    return ordered[:: max(1, len(ordered) // SAMPLED_PARTS)]


def _rate_of_files(root: Path, manifest: Manifest, done: Collection[int], n_tokens: int) -> float | None:
    """Tokens a second from the first part in place to the last, by the times of their files."""
    paths = [root / manifest.kind.value / part_name(part) for part in _sample(sorted(done))]
    times = [time_s for path in paths if (time_s := modified_s(path)) is not None]
    elapsed_s = max(times) - min(times) if times else 0.0
    return n_tokens * (1 - 1 / len(done)) / elapsed_s if elapsed_s > 0 else None


def _size(part: Part, manifest: Manifest) -> int:
    has_bytes = part.file < len(manifest.inputs) and manifest.inputs[part.file].size_bytes
    return part.stop - part.start if has_bytes else 1


def _n_rows(root: Path, manifest: Manifest, parts: Iterable[int]) -> Iterator[tuple[int, int]]:
    for part in parts:
        try:
            with TableFile(root / manifest.kind.value / part_name(part), manifest.kind) as file:
                yield part, file.footer.n_rows
        except InputError:  # `verify` says what is wrong with it
            continue
