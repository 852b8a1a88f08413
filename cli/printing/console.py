"""The console: what tokscore prints, and what its libraries do, reaches the terminal through here alone.

Ids, names of files and columns, messages of templates and libraries may hold escapes that recolour, rename or
overwrite a terminal. Here they become visible, whoever prints them. Colours come from `styled`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tokscore.cli.printing.option_names import as_options
from tokscore.cli.printing.visible import escaped, json_escaped

_DESCRIPTORS = range(3)
_NAMES = {
    "<stdout>": "standard output",
    "<stderr>": "standard error",
    1: "standard output",
    2: "standard error",
}


class GuardedStream(io.TextIOWrapper):
    """A stream that escapes controls, and what its encoding lacks."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        """Take the place of `stream`."""
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._replaced = stream  # it would close the file if it were not kept

    def write(self, text: str, /) -> int:
        """Write the text, escaped."""
        self.write_styled(escaped(text, "\n\t"))
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write text whose only escapes are tokscore's own."""
        with self._named():
            return super().write(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with self._named():
            super().flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors of the system say what failed."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or _NAMES.get(self.name)
            raise


class CsvOutput:
    """Standard output as `csv.writer` takes it."""

    def write(self, text: str) -> int:
        """Write one row."""
        return sys.stdout.write(escaped(text, "\n\t"))


def guard() -> None:
    """Let nothing reach standard output and standard error but through this module.

    Raises:
        OSError: Standard output is closed.
    """
    is_closed = sys.stdout is None
    _open_closed_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, GuardedStream):
            stream.flush()
            setattr(sys, name, GuardedStream(stream))
    os.environ.setdefault("PYTHON_COLORS", "0")  # of tracebacks
    if is_closed:
        raise OSError("standard output is closed; redirect it to /dev/null where nobody reads it")


def _open_closed_descriptors() -> None:
    """Open /dev/null where a standard stream is closed: a dataset's file would take its number."""
    for descriptor in _DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def discard() -> None:
    """Let what is still to be printed go nowhere, where nobody reads it any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush() -> None:
    """Hand on what was printed.

    Raises:
        OSError: Nobody reads it, or the disk is full.
    """
    sys.stdout.flush()
    sys.stderr.flush()


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether somebody looks at standard output, or at standard error."""
    return (sys.stderr if stderr else sys.stdout).isatty()


def note(text: str) -> None:
    """A line for people, on standard error, with options for arguments."""
    print(escaped(as_options(text)), file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Print a result."""
    sys.stdout.write(escaped(text))


def write_json(text: str) -> None:
    """Print JSON, or a piece of it."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    sys.stdout.write(json_escaped(text, is_ascii=not is_unicode))
