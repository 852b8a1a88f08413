"""`tokscore formats`."""

from __future__ import annotations

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import write
from tokscore.cli.printing.option_names import as_options
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, print_rows

EPILOG = """Examples:

\b
  tokscore formats
  tokscore formats --format json
"""
COLUMNS = (
    Column("name", "format"),
    Column("has_ids", "ids"),
    Column("has_logprobs", "logprobs"),
    Column("has_branches", "branches"),
)


def formats(form: options.FormatOption = Format.TABLE) -> None:
    """List the formats of trajectories that render, logprobs, drift and stats read.

    The first record of an input tells its format; --input-format overrides that. The examples are records as
    they stand; token ids in them are those of SmolLM2.
    """
    from tokscore.rendering.reading.formats import FORMATS, load_format

    rows = []
    for name in FORMATS:
        found = load_format(name)
        rows.append(
            {
                "name": name,
                "has_ids": found.has_ids,
                "has_logprobs": found.has_logprobs,
                "has_branches": found.has_branches,
                "fields": as_options(found.fields),
                "example": found.example,
            }
        )
    if form is not Format.TABLE:
        print_rows((*COLUMNS, Column("fields", "fields"), Column("example", "example")), rows, form)
        return
    print_rows(COLUMNS, rows, form, title="Input formats")
    for row in rows:
        write(f"{row['name']}\n  fields   {row['fields']}\n  example  {row['example']}\n\n")
