"""Rendering whose processes meet trouble, each kind once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokscore.dataset.choices import Executor, OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.manifest import Manifest, Part
from tokscore.rendering import open_source
from tokscore.rendering.executors.execution import Execution
from tokscore.rendering.executors.work import Outcome, Tell, Worker
from tokscore.rendering.render_work import RenderWork

PART_BYTES = 400
PART_S = 0.05


@dataclass(frozen=True)
class TroubledWork:
    """The work of `RenderWork`, with trouble before some part.

    Attributes:
        work: Renders.
        trouble: hang, memory, die, refuse, or empty for none.
        part: Where it comes.
        always: Whether it comes to every process that has the part, not to the first alone.
    """

    work: RenderWork
    trouble: str = ""
    part: int = 2
    always: bool = False

    @property
    def out(self) -> Path:
        return self.work.out

    @property
    def manifest(self) -> Manifest:
        return self.work.manifest

    def start(self, tell: Tell) -> TroubledWorker:
        return TroubledWorker(self, self.work.start(tell))


@dataclass
class TroubledWorker:
    troubled: TroubledWork
    worker: Worker

    def run(self, part: Part, seen: Callable[[int], None]) -> Outcome:
        time.sleep(PART_S)
        if part.index == self.troubled.part and self._comes():
            match self.troubled.trouble:
                case "hang":
                    time.sleep(600)
                case "memory":
                    self.taken = b"x" * (900 << 20)
                    time.sleep(600)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "refuse":
                    raise InputError("nothing is right here.")
        return self.worker.run(part, seen)

    def _comes(self) -> bool:
        place = self.troubled.out.with_name("came")
        came = place.exists()
        place.touch()
        return self.troubled.always or not came

    def close(self) -> None:
        self.worker.close()


@dataclass(frozen=True)
class TroubledExecution(Execution):
    """Makes trouble for the work that it is given."""

    trouble: str = ""
    always: bool = False

    def run(self, work, parts, sizes, **told):  # type: ignore[no-untyped-def]
        return super().run(TroubledWork(work, self.trouble, always=self.always), parts, sizes, **told)


def render(model: str, lines: str, out: Path, execution: Execution, **told: Callable[..., None]) -> None:
    """Render with an execution."""
    from tokscore.rendering.run import render_source

    source = open_source([lines], model, part_bytes=PART_BYTES)
    render_source(source, out, on_error=OnError.SKIP, execution=execution, **told)


def main() -> None:
    """Be a driver that can be killed; arguments: model, input, output and executor."""
    from tokscore.cli.interrupts import unwind

    unwind()  # as the command does
    execution = TroubledExecution(executor=Executor(sys.argv[4]), replicas=2)
    render(sys.argv[1], sys.argv[2], Path(sys.argv[3]), execution)
