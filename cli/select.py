"""`tokscore select`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, print_all_columns, print_json, print_rows

EPILOG = """Examples:

\b
  tokscore select demo-output/teacher examples/conversations.jsonl \\
      --where 'mean_logprob > -4 and n_tokens < 200' -o kept.jsonl
  tokscore select demo-output/teacher examples/conversations.jsonl --keep-top 90% --by mean_logprob \\
      --role assistant -o kept.jsonl --dropped dropped.jsonl
"""
_COLUMNS = (Column("decision", "decision"), Column("n", "conversations"))


def select(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Token or score dataset with the conversations.")
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="All files that it was made from; by default those of their names in the working directory "
            "or beside the dataset.",
        ),
    ] = None,
    *,
    where: Annotated[
        str | None,
        options.option(
            "--where",
            metavar="CONDITION",
            help="Keep conversations for which this holds, as in SQL: 'mean_logprob > -2 and "
            "n_tokens < 4096'. Names are those of stats and metadata.NAME, with --against also of diff.",
        ),
    ] = None,
    keep_top: Annotated[
        str | None,
        options.option(
            "--keep-top", metavar="N|P%", help="Keep so many of them, those with the largest --by."
        ),
    ] = None,
    keep_bottom: Annotated[
        str | None,
        options.option(
            "--keep-bottom", metavar="N|P%", help="Keep so many of them, those with the smallest --by."
        ),
    ] = None,
    by: Annotated[
        str | None,
        options.option("--by", metavar="NAME", help="Number to order by, such as mean_logprob."),
    ] = None,
    role: Annotated[
        str | None,
        options.option("--role", metavar="ROLE", help="Count the tokens and messages of this role alone."),
    ] = None,
    sampled: Annotated[
        bool, options.option("--sampled", help="Count tokens alone that a model generated.")
    ] = False,
    against: Annotated[
        Path | None,
        options.option("--against", metavar="SCORES", help="Scores of another model, to compare with."),
    ] = None,
    out: Annotated[
        Path | None,
        options.option(
            "--out",
            "-o",
            metavar="FILE",
            help="File of the records that are kept, as they were; .gz and .zst compress, .parquet copies "
            "rows of Parquet files. Without it the counts are printed alone.",
            parser=options.output_path,
        ),
    ] = None,
    dropped: Annotated[
        Path | None,
        options.option(
            "--dropped",
            metavar="FILE",
            help="File with a line for each other record, and why it is not kept.",
            parser=options.output_path,
        ),
    ] = None,
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Write the original records of the conversations whose numbers satisfy a condition."""
    print_all_columns(wide)
    from tokscore.analytics.selection.choosing import select as choose
    from tokscore.analytics.selection.records import find_files, write_records
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.files import check_is_new_file
    from tokscore.rendering.inputs import expand_patterns

    if dropped is not None and out is None:
        raise UsageError("--dropped says what is not in --out; expected both.")
    for path in filter(None, (out, dropped)):
        check_is_new_file(path)
    selection = choose(
        dataset,
        where=where,
        keep_top=keep_top,
        keep_bottom=keep_bottom,
        by=by,
        role=role,
        sampled=sampled,
        against=against,
    )
    if out is not None:
        sources = expand_patterns(files) if files else find_files(selection)
        write_records(selection, sources, out, dropped=dropped)
    reasons = selection.reasons()
    if form is Format.JSON:
        print_json(
            {"n_conversations": selection.n_conversations, "n_kept": selection.n_kept, "left_out": reasons}
        )
    else:
        rows = [("kept", selection.n_kept), *reasons.items()]
        print_rows(_COLUMNS, [{"decision": name, "n": count} for name, count in rows], form)
    if not selection.n_kept:
        note("warning: no conversation is kept.")
