"""Colours, tables and pages: rich, with the escapes of foreign text shown."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.pager import Pager
from rich.segment import Segment

from tokscore.cli.printing.console import GuardedStream, is_terminal
from tokscore.cli.printing.visible import escaped


class _Styled:
    """A standard stream that rich may write its colours to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.write = stream.write_styled if isinstance(stream, GuardedStream) else stream.write

    def __getattr__(self, name: str) -> Any:  # Any: of the stream
        return getattr(self._stream, name)


class StyledConsole(Console):
    """A console whose only escapes are those of its styles."""

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:  # Any: of rich
        """Open it on standard output, or on standard error.

        Args:
            stderr: Which.
            **settings: For rich.
        """
        stream: Any = _Styled(sys.stderr if stderr else sys.stdout)  # Any: as rich wants a file
        super().__init__(file=stream, highlight=False, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is printed, escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))

    def paged(self) -> AbstractContextManager[object]:
        """Show what is printed meanwhile in pages, where somebody looks at it."""
        return self.pager(_Pages(), styles=not self.no_color) if is_terminal() else nullcontext()


class _Pages(Pager):
    def show(self, content: str) -> None:
        command = os.environ.get("PAGER") or shutil.which("less")
        if not command or not sys.stdin or not sys.stdin.isatty():
            _Styled(sys.stdout).write(content)
            return
        # As git does it: colours pass, what fits on the screen stays there.
        environment = {"LESS": "FRX", **os.environ}
        pager = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, env=environment)
        assert pager.stdin is not None
        with suppress(OSError), pager.stdin as pipe:  # it may end before it has read all
            pipe.write(content.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        while True:
            try:
                pager.wait()
                return
            except KeyboardInterrupt:
                continue  # the pager has it too, and knows what it means
