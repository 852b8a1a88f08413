"""Claims as they lie in a dataset: who works on which part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokscore.dataset.claims.commit import CLAIMS
from tokscore.dataset.claims.files import ClaimFiles

_CLAIM = re.compile(r"part-([0-9]{5,9})\.([0-9]{1,6})\.json")
_FAILED = re.compile(r"part-([0-9]{5,9})\.failed\.json")
_EITHER = re.compile(r"part-([0-9]{5,9})\.(?:[0-9]{1,6}|(failed))\.json")
# Seconds without a heartbeat before others take a part.
LEASE_S = 60.0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One process works on one part.

    Attributes:
        part: Index of the part.
        attempt: 1 for the first process that had the part; the next takes it over under the next number.
        host: For people.
        namespace: Which processes `pid` is one of.
        pid: Process.
        pid_start: Ticks from boot to its start, as ids are given again; 0 where not known.
        replica: What the run calls it, such as "local 3" or the task of an array.
        started: When it was claimed, seconds since 1970 by its own clock.
        heartbeat: When its owner last said that it works, likewise.
        lease_s: Seconds without a heartbeat after which others may take the part.
        n_ends: Processes that had the part before, and ended while their host went on.
        n_tokens: Tokens of the part done so far.
        n_tokens_before: Tokens of parts that this process finished before.
        n_parts_before: Their number.
        replica_started: When this process claimed its first part.
    """

    part: int
    attempt: int
    host: str
    namespace: str
    pid: int
    pid_start: int
    replica: str
    started: float
    heartbeat: float
    lease_s: float
    n_ends: int = 0
    n_tokens: int = 0
    n_tokens_before: int = 0
    n_parts_before: int = 0
    replica_started: float = 0.0

    @property
    def name(self) -> str:
        """Of its file."""
        return f"part-{self.part:05d}.{self.attempt}.json"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FailedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part that nobody takes again before the next run.

    Attributes:
        part: Index of the part.
        reason: What happened to those that had it.
    """

    part: int
    reason: str

    @property
    def name(self) -> str:
        """Of its file."""
        return f"part-{self.part:05d}.failed.json"


class FoundClaims(NamedTuple):
    """What lies in claims/.

    Attributes:
        claims: Of each part the latest, by index; their owners may have ended meanwhile.
        failed: By index.
    """

    claims: dict[int, Claim]
    failed: dict[int, FailedPart]


def read_claims(root: Path) -> FoundClaims:
    """All claims of a dataset, from one listing; none where nobody works on it."""
    return read_from(ClaimFiles(root / CLAIMS))


class NamedParts(NamedTuple):
    """Parts by the names of files in claims/ alone.

    Attributes:
        claimed: With a claim; their owners may have ended meanwhile.
        failed: That were set aside.
    """

    claimed: set[int]
    failed: set[int]


def named_parts(files: ClaimFiles) -> NamedParts:
    """Parts with a claim and parts that were set aside, from one listing."""
    named = NamedParts(set(), set())
    for name in files.names():
        if found := _EITHER.fullmatch(name):
            (named.claimed if found[2] is None else named.failed).add(int(found[1]))
    return named


def read_from(files: ClaimFiles, parts: Iterable[int] | None = None) -> FoundClaims:
    """The claims in a folder, of some parts or of all."""
    wanted = None if parts is None else {*parts}
    names = files.names()
    if wanted is not None:
        begins = tuple(f"part-{part:05d}." for part in wanted)
        names = [name for name in names if name.startswith(begins)]
    latest: dict[int, int] = {}
    failed: dict[int, FailedPart] = {}
    for name in names:
        if found := _CLAIM.fullmatch(name):
            part, attempt = map(int, found.groups())
            latest[part] = max(latest.get(part, 0), attempt)
        elif found := _FAILED.fullmatch(name):
            content = files.read(name)
            if content is not None:
                failed[int(found[1])] = _failed(int(found[1]), content)
    claims: dict[int, Claim] = {}
    for part, attempt in latest.items():
        # One that ended between the listing and this is nobody's.
        content = files.read(f"part-{part:05d}.{attempt}.json")
        if content is not None:
            claims[part] = _claim(part, attempt, content)
    return FoundClaims(claims, failed)


def _claim(part: int, attempt: int, content: bytes) -> Claim:
    """What the file of a claim says.

    One that is cut, by a full disk or the end of its machine, or since it is being written, is that of a
    process that cannot be seen from here.
    """
    with suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(content, type=Claim)
    return Claim(
        part=part,
        attempt=attempt,
        host="an unknown host",
        namespace="",
        pid=0,
        pid_start=0,
        replica="",
        started=0.0,
        heartbeat=0.0,
        lease_s=LEASE_S,
    )


def _failed(part: int, content: bytes) -> FailedPart:
    with suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(content, type=FailedPart)
    return FailedPart(part=part, reason="the file that says why is damaged")
