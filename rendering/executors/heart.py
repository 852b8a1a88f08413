"""A thread that says that a part is worked on, and ends the process where nothing moves."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import sys
import time
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from tokscore.dataset.claims.claiming import HEARTBEATS_A_LEASE
from tokscore.dataset.errors import TokscoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tokscore.dataset.claims.claiming import Claims

# Of a process whose engine made no progress.
STALLED = 75
_LOG = logging.getLogger(__name__)


class LostPartError(Exception):
    """Another process took the part over, because this one said nothing for a lease."""


class Heart:
    """Beats while a process works on parts.

    Attributes:
        n_tokens: Tokens done of the part in hand.

    Source:
        faulthandler: dumps the stacks of all threads from a thread in C, without the interpreter's lock.
    """

    def __init__(
        self, claims: Claims, stall_s: float | None = None, tell: Callable[[int], None] | None = None
    ) -> None:
        """Prepare it.

        Args:
            claims: Of this process.
            stall_s: Seconds without progress after which the process ends itself; None for never.
            tell: Called from the thread with the tokens of the part in hand.
        """
        self._claims, self._stall_s, self._tell = claims, stall_s, tell
        self._every_s = claims.lease_s / HEARTBEATS_A_LEASE
        self.n_tokens = 0
        self._is_lost = False
        self._moved_s, self._armed_s = math.inf, -math.inf
        self._stopped = Event()
        self._thread = Thread(target=self._beat, daemon=True, name="heart")

    def moved(self) -> None:
        """Something was done."""
        self._moved_s = time.monotonic()
        if self._stall_s is not None and self._moved_s - self._armed_s > 1:
            self._armed_s = self._moved_s
            # Where a call into C holds Python's lock and never returns, the thread cannot run either.
            faulthandler.dump_traceback_later(self._stall_s * 1.2 + 5, exit=True)

    def begin(self) -> None:
        """Another part is in hand."""
        self.n_tokens, self._is_lost = 0, False
        self.moved()

    def rest(self) -> None:
        """No part is in hand, so that nothing has to move: those of others are waited for."""
        self._moved_s, self._armed_s = math.inf, -math.inf
        if self._stall_s is not None:
            faulthandler.cancel_dump_traceback_later()

    def seen(self, n_tokens: int) -> None:
        """Tokens of the part were done.

        Raises:
            LostPartError: The part is another process's by now.
        """
        self.count(n_tokens)
        if self._is_lost:
            raise LostPartError

    def count(self, n_tokens: int) -> None:
        """Count tokens of the part, whoever has it by now."""
        self.n_tokens += n_tokens
        self.moved()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self.rest()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._stopped.wait(min(self._every_s, 1.0)):
            now = time.monotonic()
            if self._stall_s is not None and now - self._moved_s > self._stall_s:
                self._end()
            if now - last >= self._every_s:
                last = now
                with suppress(OSError, TokscoreError):  # a store that cannot be reached now may be later
                    self._is_lost = self._is_lost or not self._claims.beat(self.n_tokens)
            if self._tell is not None:
                self._tell(self.n_tokens)

    def _end(self) -> None:
        held = self._claims.held
        part = "" if held is None else f" on part {held.part}"
        _LOG.error("no progress%s for %g s; this process ends itself.", part, self._stall_s)
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        os._exit(STALLED)
