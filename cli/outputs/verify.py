"""`tokscore verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.printing.tables import Column, agreeing, counted, print_json, print_rows
from tokscore.dataset.errors import ExitCode

EPILOG = """Examples:

\b
  tokscore verify demo-output/teacher
  tokscore verify demo-output/tokens --format json
"""
_FAULTS = (Column("part", "part"), Column("reason", "what is wrong"))


def verify(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Dataset, finished or not.")],
    *,
    repair: Annotated[
        bool,
        options.option(
            "--repair", help="Move bad parts into set-aside/ of the dataset, so that the next run makes them."
        ),
    ] = False,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Read all of a dataset, and hold every part against the plan, its footers and its checksums.

    Ends with exit code 1 where a part is missing or wrong.
    """
    from tokscore.dataset.verification.repair import repair as set_aside
    from tokscore.dataset.verification.verify import verify as verified

    with ProgressLine("verifying", None, "parts") as line:
        found = verified(dataset, progress=line.update)
    moved = set_aside(dataset, found.faults) if repair else []
    rows = [fault._asdict() for fault in found.faults]
    if form is Format.JSON:
        print_json({**found._asdict(), "faults": rows, "set_aside": moved})
    elif rows or form is Format.CSV:
        print_rows(_FAULTS, rows, form)
    note(
        f"{found.n_whole:,} of {counted(found.n_parts, 'part')} {agreeing(found.n_parts, 'is', 'are')} "
        f"whole, with {counted(found.n_rows, 'token')}; {found.n_missing:,} missing, "
        f"{counted(len(rows), 'fault')}."
    )
    if moved:
        note(
            f"{counted(len(moved), 'part')} moved into set-aside/; the command that wrote the dataset makes "
            "them again."
        )
    if not found.is_whole:
        raise typer.Exit(ExitCode.FAILED)
