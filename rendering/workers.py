"""The work on the parts of a run, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import TokscoreError
from tokscore.dataset.manifest import Manifest, Part
from tokscore.dataset.tokens import FailedConversation
from tokscore.dataset.writing import PartWriter
from tokscore.rendering.executors.claimed import claimed
from tokscore.rendering.libraries.unused import import_what_is_used
from tokscore.rendering.tokenizers.memory import give_memory_back

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from tokscore.rendering.source import TokenSource

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Starting a process takes about as long as rendering a part.
PARTS_PER_WORKER = 2
# The last is how an interruption comes again that could not be raised where it came.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class PartResult(NamedTuple):
    """The outcome of one part.

    Attributes:
        n_conversations: Written.
        n_tokens: Written.
        n_failed: Listed in errors/.
        first_failure: Of these, the first.
        doubt: Why fastokens was given up meanwhile, so that the ids it made cannot be trusted.
        elsewhere: The part, where another process finished it meanwhile.
    """

    n_conversations: int = 0
    n_tokens: int = 0
    n_failed: int = 0
    first_failure: FailedConversation | None = None
    doubt: str | None = None
    elsewhere: int | None = None


class Job(Protocol[T_co]):
    """Work on one part; picklable."""

    def run(self, part: Part, seen: Callable[[int], None]) -> T_co:
        """Do it with one part, and call `seen` now and then, which may raise."""
        ...


@dataclass(frozen=True)
class PartJob:
    """All that writing a part needs besides the part.

    Attributes:
        source: Yields the conversations.
        out: The dataset.
        manifest: Sealed.
        on_error: What one bad conversation does.
    """

    source: TokenSource
    out: Path
    manifest: Manifest
    on_error: OnError

    def run(self, part: Part, seen: Callable[[int], None]) -> PartResult:
        """Write one part.

        Args:
            part: Of the manifest.
            seen: Called after each conversation with the number of its tokens, 0 if it failed.

        Raises:
            ConversationError: A conversation cannot be rendered and `on_error` is fail.
        """
        n_conversations = n_tokens = n_failed = 0
        first_failure: FailedConversation | None = None
        doubts = None if self.source.text_ids is None else self.source.text_ids.doubts()
        with PartWriter(self.out, self.manifest, part.index) as writer:
            for item in self.source.read(part):
                if isinstance(item, FailedConversation):
                    if self.on_error is OnError.FAIL:
                        raise item.error()
                    writer.fail(item)
                    first_failure = first_failure or item
                    n_failed += 1
                    seen(0)
                else:
                    writer.add(item)
                    n_conversations += 1
                    n_tokens += len(item.tokens)
                    seen(len(item.tokens))
            is_first = writer.finish()
        doubt = None if doubts is None else doubts()
        return PartResult(
            n_conversations, n_tokens, n_failed, first_failure, doubt, None if is_first else part.index
        )


@dataclass(frozen=True)
class ClaimedJob:
    """Writes a part where no other run has it.

    Attributes:
        job: Writes it.
    """

    job: PartJob

    def run(self, part: Part, seen: Callable[[int], None]) -> PartResult:
        """Write one part; the outcome of a part that another run has is empty.

        Raises:
            ConversationError: As for `PartJob`.
        """
        with closing(claimed(self.job.out, self.job.manifest, [part], waits=False)) as mine:
            for one, count in mine:

                def both(n: int, count: Callable[[int], None] = count) -> None:
                    count(n)
                    seen(n)

                return self.job.run(one, both)
        return PartResult()


def choose_library(source: TokenSource, workers: int) -> None:
    """Let the source choose what makes its ids, for a run with so many processes, each of which loads it."""
    if (ids := source.text_ids) is None:
        return
    n_workers = max(min(workers, len(source.parts) // PARTS_PER_WORKER), 1)
    ids.decide(sum(file.size_bytes for file in source.inputs) // n_workers)
    if n_workers > 1:
        ids.release()  # before anything else takes memory here


def on_processes(job: Job[T], n_workers: int, parts: Sequence[Part]) -> Generator[T]:
    """The results of a job for each part, in the order of the parts; several processes share the work.

    The processes are started anew, so a script that calls this needs `if __name__ == "__main__":`.

    Raises:
        TokscoreError: A process was killed, or the job failed; of several errors, that of the first part.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    executor = ProcessPoolExecutor(
        n_workers, mp_context=context, initializer=_start, initargs=(pickle.dumps(job), stop)
    )
    try:
        give_memory_back()
        with _blocked_signals(), _one_arena():
            futures = deque(executor.submit(_run, part) for part in parts)
        while futures:
            # What is not needed any more is not kept.
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise TokscoreError(
            "a worker process ended without a result; it may have been killed for want of memory.\n"
            "Run the command again, it goes on where it stopped; `workers=1` takes the least memory."
        ) from error
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


@contextmanager
def _one_arena() -> Iterator[None]:
    """Processes that start meanwhile take memory from one place: what a thread leaves, the others use.

    glibc reads the variable as a process starts; it saves 30 MB of a process with a tokenizer.
    """
    name = "MALLOC_ARENA_MAX"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Signals wait: what is started meanwhile is started whole, and gets none before it can take it."""
    came: list[int] = []
    with ExitStack() as after:  # each runs, whatever a signal that comes late raises in another
        after.push(partial(_raise_signals, came))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        after.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        # Another thread of this process may still take one; its handler then runs in the main one.
        if current_thread() is main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    handler = signal.signal(number, lambda number, _frame: came.append(number))
                    after.callback(signal.signal, number, handler)
        yield


def _raise_signals(numbers: list[int], error: type[BaseException] | None, *_: object) -> None:
    """Give signals to their handlers, unless one raised already: a second one ends the process at once."""
    if error is None or issubclass(error, Exception):
        for number in numbers:
            signal.raise_signal(number)


class _Stopped(Exception):  # noqa: N818
    """The run ended while a part was being worked on."""


class _Worker(NamedTuple):
    job: Job[object]
    stop: Event


_WORKER: list[_Worker] = []


def _start(job: bytes, stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and says stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"  # fastokens looks at this one
    Thread(target=_exit_with_parent, daemon=True).start()
    import_what_is_used()
    _WORKER.append(_Worker(pickle.loads(job), stop))  # noqa: S301
    give_memory_back()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(part: Part) -> Any:  # Any: what the job makes
    worker = _WORKER[0]

    def check(_n_tokens: int) -> None:
        if worker.stop.is_set():
            raise _Stopped

    return worker.job.run(part, check)
