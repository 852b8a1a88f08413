"""`tokscore merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.printing.tables import agreeing, counted
from tokscore.dataset.errors import ExitCode

EPILOG = """Examples:

\b
  tokscore merge node-1/scores node-2/scores -o scores
  tokscore merge demo-output/teacher -o fewer-parts --part-mb 256
"""
_MB = 10**6
_LEAST_MB, _MOST_MB = 1e-3, 1e9


def merge(
    outputs: Annotated[
        list[str], typer.Argument(metavar="DATASET...", help="Outputs of one command, finished or not.")
    ],
    *,
    out: options.Out,
    part_mb: Annotated[
        float | None,
        options.option(
            "--part-mb",
            metavar="N",
            help="Join neighbouring parts until their token tables have N MB together.",
        ),
    ] = None,
) -> None:
    """Put the parts of several outputs of one command into one dataset, or join small parts to larger ones.

    Where several have a part, that of the first is taken. Ends with exit code 1 where parts are in none.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.outputs.merge import merge as merged

    if part_mb is not None and not _LEAST_MB <= part_mb <= _MOST_MB:
        raise UsageError(f"`part_mb` is {part_mb:g}; expected between {_LEAST_MB:g} and {_MOST_MB:g}.")
    target: Path = out
    with ProgressLine("merging", None, "parts") as line:
        found = merged(
            outputs,
            target,
            part_bytes=None if part_mb is None else round(part_mb * _MB),
            progress=line.update,
        )
    note(f"{counted(found.n_written, 'part')} of {found.n_parts:,} written.")
    n_before = found.n_parts - found.n_written - found.n_missing
    if n_before:
        note(f"{counted(n_before, 'part')} {agreeing(n_before, 'was', 'were')} there already.")
    if found.n_twice:
        note(f"several outputs had {counted(found.n_twice, 'part')}; the first one's was taken.")
    if found.n_missing:
        note(f"none of the outputs has {counted(found.n_missing, 'part')} of the plan.")
    note(f"wrote {target}")
    if found.n_missing:
        raise typer.Exit(ExitCode.FAILED)
