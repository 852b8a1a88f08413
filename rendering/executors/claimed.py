"""The parts that one process works on, each claimed as long as it has it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.claims.claim import read_claims
from tokscore.dataset.claims.claiming import Claims, clear
from tokscore.dataset.claims.commit import finished_names
from tokscore.dataset.errors import TokscoreError, counted
from tokscore.rendering.executors.heart import Heart

if TYPE_CHECKING:
    from pathlib import Path

    from tokscore.dataset.manifest import Manifest, Part
    from tokscore.rendering.executors.work import Tell


class Claimed(NamedTuple):
    """A part that is this process's to write.

    Attributes:
        part: Of the manifest.
        seen: To be called with the number of tokens done since the last call.
    """

    part: Part
    seen: Callable[[int], None]


def claimed(
    out: Path, manifest: Manifest, parts: Sequence[Part], *, waits: bool = True
) -> Generator[Claimed]:
    """The parts that nobody else works on, in order; to be closed by whoever leaves them early.

    Args:
        out: The dataset.
        manifest: Sealed.
        parts: Open ones.
        waits: Whether parts of others follow, where these end without finishing them.
    """
    claims = Claims(out, manifest.kind.value, f"{socket.gethostname()} {os.getpid()}")
    with Heart(claims) as heart:
        for index in claims.parts([part.index for part in parts], others=waits):
            heart.begin()
            try:
                yield Claimed(manifest.parts[index], heart.count)
            finally:
                claims.release(heart.n_tokens)


def begin(out: Path, manifest: Manifest, parts: Sequence[Part], tell: Tell) -> None:
    """Forget which of the parts failed before, and say which of them other processes work on.

    Args:
        out: The dataset.
        manifest: Sealed.
        parts: Open ones.
        tell: Called with lines for the user.
    """
    indices = {part.index for part in parts}
    clear(out, indices)
    claims = Claims(out, manifest.kind.value)
    for claim in claims.found().claims.values():
        if claim.part in indices and not claims.has_ended(claim):
            tell(f"{claim} works on part {claim.part} of this output; what it takes is left to it.")


def check_none_failed(out: Path, manifest: Manifest, parts: Sequence[Part]) -> None:
    """Refuse a run of which parts were set aside, and not done by a process that was given up too early.

    Args:
        out: The dataset.
        manifest: Sealed.
        parts: Of this run.

    Raises:
        TokscoreError: Which, and why.
    """
    found = read_claims(out).failed
    own = {part.index for part in parts if part.index in found}
    failed = sorted(own - finished_names(out, manifest.kind.value, own)) if own else []
    if failed:
        names = ", ".join(str(part) for part in failed[:10])
        raise TokscoreError(
            f"{counted(len(failed), 'part')} could not be done ({names}): {found[failed[0]].reason}. "
            "The same command tries again; fewer replicas leave each more memory."
        )
