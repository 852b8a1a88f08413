"""Ctrl-C and SIGTERM: a run is unwound and keeps its finished parts, and nothing else prints a traceback."""

from __future__ import annotations

import os
import signal
import sys

# As in `typing`: until handlers are set, Ctrl-C meets Python's own.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.001
_IMPORTING = "<frozen importlib._bootstrap>"


def end_at_once() -> None:
    """End the process without a word where it is interrupted: there is nothing to unwind."""
    _handle(_end)
    # One that is to come again would meet a Python without handlers, and end the process itself.
    signal.setitimer(signal.ITIMER_REAL, 0)


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _SIGNALS:
        # A shell lets what it starts in the background ignore Ctrl-C.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def unwind() -> Stopper:
    """Raise `KeyboardInterrupt` or `SystemExit` where it is interrupted, and end at once the second time.

    Imports are waited for: libraries in C take an exception in them for their own failure, and print it.
    Python drops one that it meets while it deletes an object; the signal then comes again.

    Returns:
        Knows whether the process was interrupted, also where that was not raised yet.
    """
    stopper = Stopper()
    _handle(stopper.stop)
    signal.signal(signal.SIGALRM, stopper.stop)
    # Who started this process may have blocked it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    before = sys.unraisablehook

    def dropped(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, KeyboardInterrupt | SystemExit):
            before(found)
        elif stopper.number is not None:
            stopper.again()

    sys.unraisablehook = dropped
    return stopper


class Stopper:
    """What came, and whether it was raised already.

    Attributes:
        number: Of the first signal.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._is_raised = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Raise what came, or have it come again."""
        if number == signal.SIGALRM:
            if self.number is None or self._is_raised:
                return
        elif self.number is not None:
            _end(self.number, frame)
        else:
            self.number = number
        if _is_importing(frame):
            self.again()
            return
        self._is_raised = True
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + signal.SIGTERM)

    def again(self) -> None:
        """Have it come again in a moment."""
        self._is_raised = False
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def settle(self) -> int | None:
        """The exit code of what came, raised or not; what comes from here on ends the process at once."""
        end_at_once()
        number, self.number = self.number, None  # an alarm on its way finds nothing to raise
        return None if number is None else 128 + number


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
