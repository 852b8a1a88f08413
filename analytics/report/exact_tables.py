"""Exact values on a page: their means by group, and the figures by which quantised models are judged."""

from __future__ import annotations

from tokscore.analytics.exact.report import ExactReport, ExactRow
from tokscore.analytics.exact.summary import Figure
from tokscore.analytics.groups.grouping import group_label
from tokscore.analytics.report.charts import Bar, bar_chart
from tokscore.analytics.report.page import Table


def exact_tables(report: ExactReport) -> list[Table]:
    """Both tables; the first has a chart of KL(teacher || student)."""
    named = [(group_label(row.group, report.by), row) for row in report.groups]
    kl = "kl_teacher_student"
    means = [(label, row.values[kl]) for label, row in named]
    bars = [Bar(label, 0.0, mean) for label, mean in means if mean is not None]
    title = "Exact KL(T||S), nats per token"
    head = ["tokens", *(measure.heading for measure in report.measures), "top-1 agreement"]
    rows = [[label, *_cells(row)] for label, row in (*named, ("(all)", report.total))]
    by_group = Table(
        "exact",
        f"Exact values by {report.by.value}, over the whole vocabulary",
        [report.by.value, *head],
        rows,
        bar_chart(bars, title) if bars else None,
    )
    figures = [[figure.label, *_figure_cells(figure)] for figure in report.summary.figures]
    errors = ["± over tokens", "± over conversations"]
    return [by_group, Table("figures", "Figures of quantised models", ["", "value", *errors], figures)]


def _cells(row: ExactRow) -> list[str]:
    means = [*row.values.values(), row.top1_agreement]
    shown = ["-" if mean is None else f"{mean:.4f}" for mean in means]
    for index, name in enumerate(row.values):
        if row.n_infinite.get(name):
            shown[index] = "\N{INFINITY}"
    return [f"{row.n_tokens:,}", *shown]


def _figure_cells(figure: Figure) -> list[str]:
    values = (figure.value, figure.se_tokens, figure.se_conversations)
    return [figure.shown(value) for value in values]
