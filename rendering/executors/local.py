"""Replicas on this machine: started, watched, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING

from tokscore.dataset.claims.claiming import MAX_ATTEMPTS
from tokscore.dataset.claims.commit import finished_names
from tokscore.dataset.errors import EngineError, agreeing, counted
from tokscore.rendering.executors.heart import STALLED
from tokscore.rendering.executors.memory import MemoryWatch
from tokscore.rendering.executors.process import (
    Done,
    Failed,
    Told,
    Working,
    command,
    read_messages,
    write_message,
)
from tokscore.rendering.executors.work import Totals

if TYPE_CHECKING:
    from tokscore.rendering.executors.replica import Order
    from tokscore.rendering.executors.work import Progress, Tell

# Ends of replicas, one after the other, without a part finished by any between them. A part that ends each
# process that has it is set aside before.
MAX_ENDS = MAX_ATTEMPTS + 1
# Seconds that a replica has to end in, before it is killed.
GRACE_S = 10.0
_LOOK_S = 0.5
# Until memory that was given back is seen.
_RELIEF_S = 5.0


class _Ended:
    """The stream of a replica ended."""


@dataclass
class _Running:
    """One replica."""

    number: int
    process: subprocess.Popen[bytes]
    n_tokens: int = 0
    is_over: bool = False
    why: str | None = None


@dataclass
class LocalReplicas:
    """Some processes of this machine that work on the parts of a run.

    Attributes:
        orders: What each replica is told.
        environments: Variables of each: its devices, or its share of the cores.
        memory: Ends replicas before the system does.
        progress: Called with parts and tokens done.
        tell: Called with lines for the user.
    """

    orders: Sequence[Order]
    environments: Sequence[dict[str, str]]
    memory: MemoryWatch
    progress: Progress
    tell: Tell
    totals: Totals = field(default_factory=Totals)
    _queue: Queue[tuple[_Running, object]] = field(default_factory=Queue)
    _running: list[_Running] = field(default_factory=list)
    _n_working: int = 0
    _n_ends: int = 0
    _next_watch_s: float = 0.0

    def run(self) -> Totals:
        """Work until no part is left, or ids are in doubt.

        Raises:
            TokscoreError: A replica said that the run has to end, or replicas end again and again.
        """
        try:
            for number in range(len(self.orders)):
                self._start(number)
            while any(not each.is_over for each in self._running):
                self._look()
                if self.totals.doubt is not None:
                    return self.totals
        finally:
            self._stop()
        return self.totals

    def _start(self, number: int) -> None:
        process = subprocess.Popen(
            command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **self.environments[number]},
        )
        running = _Running(number, process)
        self._running.append(running)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended at once, as its stream says
            write_message(process.stdin, self.orders[number])
        Thread(target=self._listen, args=(running,), daemon=True).start()

    def _listen(self, running: _Running) -> None:
        assert running.process.stdout is not None
        try:
            with suppress(EOFError, OSError):
                for message in read_messages(running.process.stdout):
                    self._queue.put((running, message))
        finally:
            running.process.wait()
            self._queue.put((running, _Ended()))

    def _look(self) -> None:
        try:
            running, message = self._queue.get(timeout=_LOOK_S)
        except Empty:
            self._watch_memory()
            return
        if running.is_over:
            return
        match message:
            case Done(_part, outcome):
                self._n_ends = 0
                self._works_on(running, 0)
                self.totals.add(outcome)
            case Working(n_tokens):
                self._works_on(running, n_tokens)
                self._watch_memory()
            case Told(line):
                self.tell(line if len(self.orders) == 1 else f"replica {running.number}: {line}")
            case Failed(error):
                raise error
            case _Ended():
                self._ended(running)
        self.progress(self.totals.n_parts, self.totals.count("n_tokens") + self._n_working)

    def _works_on(self, running: _Running, n_tokens: int) -> None:
        """Count the tokens of the part that a replica has in hand."""
        self._n_working += n_tokens - running.n_tokens
        running.n_tokens = n_tokens

    def _ended(self, running: _Running) -> None:
        _kill(running.process)  # what its engine had started
        self._works_on(running, 0)
        running.is_over = True
        code = running.process.returncode
        if code == 0:
            return
        why = running.why or _ending(code)
        self._n_ends += 1
        work = self.orders[running.number].work
        parts = self.orders[running.number].parts
        n_open = len(parts) - len(finished_names(work.out, work.manifest.kind.value, parts))
        if self._n_ends >= MAX_ENDS:
            raise EngineError(
                f"replicas ended {MAX_ENDS} times without finishing a part; the last was replica "
                f"{running.number}, which {why}. What it said is above. Finished parts are kept."
            )
        if n_open:
            self.tell(
                f"warning: replica {running.number} {why}; it is started again, "
                f"{counted(n_open, 'part')} {agreeing(n_open, 'is', 'are')} open."
            )
            self._start(running.number)

    def _watch_memory(self) -> None:
        now = time.monotonic()
        if now < self._next_watch_s:
            return
        self._next_watch_s = now + 1
        live = [each for each in self._running if not each.is_over and each.why is None]
        found = self.memory.too_large([each.process.pid for each in live])
        if found is not None:
            running = next(each for each in live if each.process.pid == found.pid)
            running.why = f"was ended before the system would: {found.reason}"
            self._next_watch_s = now + _RELIEF_S
            _kill(running.process)

    def _stop(self) -> None:
        live = [each.process for each in self._running if each.process.poll() is None]
        for process in live:
            process.send_signal(signal.SIGTERM)
        ends_s = time.monotonic() + GRACE_S
        for process in live:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(ends_s - time.monotonic(), 0))
        for each in self._running:
            if not each.is_over:  # another process may have the id of one that is
                _kill(each.process)
            for stream in (each.process.stdin, each.process.stdout):
                if stream is not None and each.process.poll() is not None:
                    with suppress(OSError, ValueError):
                        stream.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the group that a replica leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
        process.wait()


def _ending(code: int) -> str:
    if code == STALLED:
        return "made no progress for the time of --stall-timeout (its stack is above)"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
