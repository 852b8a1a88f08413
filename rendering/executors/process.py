"""A replica as a process of its own: its order on standard input, what it reports on standard output.

Standard input stays open as long as the process that started it lives.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from threading import Lock, Thread
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from tokscore.dataset.errors import TokscoreError
    from tokscore.rendering.executors.replica import Order
    from tokscore.rendering.executors.work import Outcome

_AGAIN_S = 0.001
_LENGTH_BYTES = 8
_CHUNK_BYTES = 4_096


class Done(NamedTuple):
    """A part is in place."""

    part: int
    outcome: Outcome


class Told(NamedTuple):
    """A line for the user."""

    line: str


class Working(NamedTuple):
    """The part in hand goes on."""

    n_tokens: int


class Failed(NamedTuple):
    """The run has to end."""

    error: TokscoreError | OSError


def command() -> list[str]:
    """Starts a replica that finds its modules where this process does, and not in the folder it runs in."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from tokscore.rendering.executors.process import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code]


def write_message(stream: IO[bytes], message: object) -> None:
    """Send something that can be pickled."""
    content = pickle.dumps(message, protocol=5)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    stream.flush()


def read_messages(stream: IO[bytes]) -> Any:  # Any: a generator of what was written
    """What was sent, up to the end of the stream; half a message is none."""
    while True:
        length = stream.read(_LENGTH_BYTES)
        if len(length) < _LENGTH_BYTES:
            return
        n_bytes = int.from_bytes(length, "little")
        content = stream.read(n_bytes)
        if len(content) < n_bytes:
            return
        yield pickle.loads(content)  # noqa: S301  # only the parent and its replicas write it


class _Reports:
    """Messages to the parent, from any thread."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._lock = stream, Lock()

    def send(self, message: object) -> None:
        with self._lock:
            try:
                write_message(self._stream, message)
            except OSError:
                os._exit(1)  # nobody listens


def main() -> int:
    """Run the replica that standard input describes."""
    reports = _Reports(os.fdopen(os.dup(1), "wb"))
    # What libraries print belongs to the log.
    os.dup2(2, 1)
    end_when_told()
    order: Order = next(read_messages(sys.stdin.buffer))
    Thread(target=_end_with_parent, daemon=True).start()
    from tokscore.dataset.errors import TokscoreError
    from tokscore.rendering.executors.replica import Events, Replica

    replica = Replica(
        order,
        Events(
            done=lambda part, outcome: reports.send(Done(part, outcome)),
            tell=lambda line: reports.send(Told(line)),
            working=lambda n_tokens: reports.send(Working(n_tokens)),
        ),
    )
    try:
        replica.run()
    except (TokscoreError, OSError) as error:
        reports.send(Failed(error))
        return 1
    finally:
        replica.close()
    return 0


def end_when_told() -> None:
    """Raise `SystemExit` at SIGTERM, once, and take no notice of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and says stop
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGALRM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    sys.unraisablehook = _raise_again


def _stop(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _raise_again(found: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised while it deletes an object; SIGALRM brings it again."""
    if isinstance(found.exc_value, SystemExit):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(found)


def _end_with_parent() -> None:
    # Not by way of `sys.stdin`, whose lock Python wants when it ends.
    while os.read(0, _CHUNK_BYTES):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # and what the engine started
    os._exit(1)
