"""The `tokscore` command: from the start of its process to its exit code."""

from __future__ import annotations

import errno
import os
import sys

from tokscore.cli import interrupts

# As in `typing`: until `main` runs, Ctrl-C meets Python's own handler.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run the command line and exit; expected failures and interruptions end without a traceback."""
    interrupts.end_at_once()
    from tokscore.cli.printing import console

    code = 1
    try:
        console.guard()
        code = _run()
        console.flush()
    except OSError as error:
        interrupts.end_at_once()
        code = _failed(error)
    finally:
        # Nothing is under way any more, and libraries that are interrupted while they end say so at length.
        interrupts.end_at_once()
        console.discard()
    sys.exit(code)


def _run() -> int:
    """Run a command.

    Returns:
        Its exit code.

    Raises:
        OSError: A file of the system that nothing else is known of, or standard output, failed.
    """
    from tokscore.cli.app import app
    from tokscore.cli.printing.console import note
    from tokscore.dataset.errors import ExitCode, TokscoreError

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    stopper = interrupts.unwind()
    try:
        try:
            # Without this mode it would print errors itself.
            code = app(prog_name="tokscore", standalone_mode=False)
        except TokscoreError as error:
            note(f"error: {error}")
            code = error.exit_code
        except Exception as error:
            if not hasattr(error, "format_message"):  # typer's own click has no public name
                raise
            code = _wrong_usage(error)
        # An interruption that waits for an import may be overtaken by the end of the command.
        code = stopper.settle() or code
    except SystemExit as ending:
        code = ending.code
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        note("interrupted; finished parts are kept, the same command goes on from there.")
    return code if isinstance(code, int) else ExitCode.DONE


def _wrong_usage(error: Any) -> int:  # Any: typer's own click has no public name
    """Print how a command is used and what is wrong."""
    from io import StringIO

    from tokscore.cli.printing.console import note

    shown = StringIO()
    error.show(shown)
    note(shown.getvalue().rstrip())
    code: int = error.exit_code
    return code


def _failed(error: OSError) -> int:
    """Print what the system did not do.

    Raises:
        OSError: It says nothing that a user could act on.
    """
    from tokscore.cli.printing.console import note
    from tokscore.dataset.errors import ExitCode

    if isinstance(error, BrokenPipeError):
        return ExitCode.FAILED
    reason = error.strerror or (str(error) if error.errno is None and len(error.args) == 1 else None)
    if reason is None:
        raise error
    place = "" if error.filename is None else f"{_name(error.filename)}: "
    if error.errno == errno.ENAMETOOLONG:
        note(f"error: {place}longer than the name of a file can be; expected one of a file, folder or model.")
        return ExitCode.BAD_INPUT
    note(f"error: {place}{reason}.")
    return ExitCode.FAILED


def _name(found: str | bytes | int) -> str:
    from tokscore.cli.printing.tables import cut

    return cut(str(found) if isinstance(found, int) else os.fsdecode(found))


if __name__ == "__main__":
    main()
