"""The tables of `tokscore diff --exact`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.diff import shown_limits
from tokscore.cli.printing.tables import Column, counted, print_json, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.analytics.exact.figures import Figure, Summary
    from tokscore.analytics.exact.report import ExactReport


def print_exact(report: ExactReport, *, details: bool = False) -> None:
    """Print the means of every group, with `details` their confidence limits, and the summary."""
    from tokscore.analytics import group_label

    columns = [
        Column("group", report.by.value),
        Column("n_tokens", "tokens"),
        *(Column(measure.name, measure.heading) for measure in report.shown),
        Column("top1_agreement", "same top-1"),
    ]
    named = [*((group_label(row.group, report.by), row) for row in report.groups), ("(all)", report.total)]
    rows = [{**row.to_dict(), "group": label} for label, row in named]
    print_rows(columns, rows, Format.TABLE, title="Exact, over the whole vocabulary (mean per token in nats)")
    limits = [
        {
            "group": label,
            "n_conversations": row.confidence[0].n_conversations,
            **{each.name: shown_limits(each.lower, each.upper) for each in row.confidence},
        }
        for label, row in named
        if any(each.lower is not None for each in row.confidence)
    ]
    if limits and details:
        columns = [
            columns[0],
            Column("n_conversations", "conversations"),
            *(column for column in columns[1:] if column.key in limits[0]),
        ]
        title = "Exact, 95 % confidence from resampling conversations"
        print_rows(columns, limits, Format.TABLE, title=title)
    print_summary(report.summary, Format.TABLE)


def print_summary(summary: Summary, form: Format) -> None:
    """Print the figures by which quantised models are judged."""
    if form is Format.JSON:
        print_json(summary.to_dict())
        return
    if form is Format.CSV:
        names = ("name", "value", "se_tokens", "se_conversations")
        rows = [{name: getattr(figure, name) for name in names} for figure in summary.figures]
        print_rows([Column(name, name) for name in names], rows, form)
        return
    _print_figures(summary.perplexity, "Perplexity statistics")
    _print_figures(summary.kld, "KL divergence statistics, KL(base || Q) in nats")
    _print_figures(summary.delta_p, "Token probability statistics, Δp = p(Q) - p(base)")
    note(
        f"base is the first model, Q the second, over {counted(summary.n_tokens, 'token')} of "
        f"{counted(summary.n_conversations, 'conversation')}. Standard errors: over tokens as in llama.cpp, "
        "as if they were independent; over conversations, whose tokens go together."
    )


def _print_figures(figures: Sequence[Figure], title: str) -> None:
    columns = (
        Column("label", ""),
        Column("value", "value"),
        Column("se_tokens", "± over tokens"),
        Column("se_conversations", "± over conversations"),
    )
    rows = [
        {
            "label": figure.title,
            **{column.key: figure.shown(getattr(figure, column.key)) for column in columns[1:]},
        }
        for figure in figures
    ]
    print_rows(columns, rows, Format.TABLE, title=title)
