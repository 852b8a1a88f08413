"""`tokscore stats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokscore.cli import options
from tokscore.cli.options import Format
from tokscore.cli.output import Column, counted, note, print_json, print_rows

EPILOG = """Examples:

\b
  tokscore stats demo-output/teacher
  tokscore stats demo-output/tokens --by source --format csv
"""
_COUNTS = (
    Column("n_messages", "messages"),
    Column("n_tokens", "tokens"),
    Column("tokens_per_message", "tokens/message", 1),
    Column("n_sampled", "sampled"),
    Column("n_content", "content"),
)
_SCORES = (
    Column("n_scored", "scored"),
    Column("mean_logprob", "mean logprob"),
    Column("perplexity", "perplexity", 3),
    Column("rank1_share", "rank 1"),
    Column("mean_entropy", "entropy"),
)


def stats(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Token or score dataset.")],
    by: options.Group = options.GroupBy.ROLE,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Count and average the tokens of one dataset by role, or by another column."""
    print_stats(dataset, by.value, form)


def print_stats(dataset: Path, by: str, form: Format) -> None:
    """Print the aggregation of a finished dataset."""
    from tokscore.analytics import group_label
    from tokscore.analytics import stats as aggregate

    report = aggregate(dataset, by=by)
    if form is Format.JSON:
        print_json(report.to_dict())
        return
    named = [*((group_label(row.group, report.by), row) for row in report.groups), ("(all)", report.total)]
    rows = [{**row.to_dict(), "group": label} for label, row in named]
    columns = (Column("group", by), *_COUNTS, *(_SCORES if report.n_unscored is not None else ()))
    print_rows(columns, rows, form)
    failed = f", {report.n_errors:,} failed" if report.n_errors else ""
    unscored = f", {report.n_unscored:,} without a logprob" if report.n_unscored else ""
    conversations = counted(report.n_conversations, "conversation")
    note(f"{conversations}{failed}, {report.total.n_tokens:,} tokens{unscored}")
