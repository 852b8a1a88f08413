"""Exact values on a page: their means by group, the figures of quantised models, and beside the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.exact.columns import exact_columns
from tokscore.analytics.exact.figures import Figure
from tokscore.analytics.exact.parts import ExactParts
from tokscore.analytics.exact.report import ExactReport
from tokscore.analytics.exact.rows import ExactRow
from tokscore.analytics.groups.grouping import group_label
from tokscore.analytics.report.charts import Bar, bar_chart
from tokscore.analytics.report.conversation.scored import ScoredConversation
from tokscore.analytics.report.page import Table
from tokscore.analytics.report.totals import BatchTotals
from tokscore.dataset.errors import InputError
from tokscore.dataset.table_files import TableFile

MEASURES = ("kl_teacher_student",)
_COLUMNS = ("conversation_id", "branch", "position", "token_id", *MEASURES)


def exact_tables(report: ExactReport) -> list[Table]:
    """Both tables; the first has a chart of KL(teacher || student)."""
    named = [(group_label(row.group, report.by), row) for row in report.groups]
    kl = "kl_teacher_student"
    means = [(label, row.values[kl]) for label, row in named]
    bars = [Bar(label, 0.0, mean) for label, mean in means if mean is not None]
    title = "KL(T||S), nats: mean of the exact values"
    head = ["tokens", *(measure.heading for measure in report.shown), "top-1 agreement"]
    names = [measure.name for measure in report.shown]
    rows = [[label, *_cells(row, names)] for label, row in (*named, ("(all)", report.total))]
    by_group = Table(
        "exact",
        f"Exact values by {report.by.value}, over the whole vocabulary",
        [report.by.value, *head],
        rows,
        bar_chart(bars, title) if bars else None,
        is_open=True,
    )
    figures = [[figure.title, *_figure_cells(figure)] for figure in report.summary.figures]
    errors = ["± over tokens", "± over conversations"]
    return [by_group, Table("figures", "Figures of quantised models", ["", "value", *errors], figures)]


def exact_verdict(report: ExactReport) -> str:
    """What a sentence about lists leaves open, as another one."""
    kl, share = report.total.values["kl_teacher_student"], report.total.top1_agreement
    if share is None:
        return ""
    shown = "infinite" if kl is None else f"{kl:.4f} nats a token"
    return f" Over the whole vocabulary KL(T||S) is {shown}, and {share:.1%} have the same most likely id."


def _cells(row: ExactRow, names: Sequence[str]) -> list[str]:
    means = [*(row.values[name] for name in names), row.top1_agreement]
    shown = ["-" if mean is None else f"{mean:.4f}" for mean in means]
    for index, name in enumerate(names):
        if row.n_infinite.get(name):
            shown[index] = "\N{INFINITY}"
    return [f"{row.n_tokens:,}", *shown]


def _figure_cells(figure: Figure) -> list[str]:
    values = (figure.value, figure.se_tokens, figure.se_conversations)
    return [figure.shown(value) for value in values]


def with_exact(
    batches: Iterable[tuple[BatchTotals, Sequence[ScoredConversation]]], parts: ExactParts
) -> Iterator[tuple[BatchTotals, list[ScoredConversation]]]:
    """The conversations with their exact values; both in the order of the teacher's dataset.

    Raises:
        InputError: A part is damaged.
    """
    rows = _by_conversation(parts.tables(_COLUMNS))
    following = next(rows, None)
    for totals, conversations in batches:
        found = []
        for conversation in conversations:
            mine = None
            if following is not None and following[0] == (conversation.conversation_id, conversation.branch):
                mine, following = following[1], next(rows, None)
            found.append(replace(conversation, exact=_values(conversation, mine)))
        yield totals, found


def find_exact(conversation: ScoredConversation, path: Path) -> ScoredConversation:
    """The conversation with the values that a file of `diff --exact -o` has.

    Raises:
        InputError: It is no such file, or holds other tokens or none of this conversation.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected exact.parquet of tokscore diff --exact -o.")
    with TableFile(path, exact_columns(()), hint="Run diff --exact -o again.") as file:
        for key, rows in _by_conversation(file.batches(_COLUMNS)):
            if key == (conversation.conversation_id, conversation.branch):
                return replace(conversation, exact=_values(conversation, rows))
    raise InputError(f"{path} holds nothing of {conversation.name}; expected the comparison of its dataset.")


def _by_conversation(tables: Iterable[pa.Table]) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    """The rows of each conversation; none goes on in another table."""
    for table in tables:
        keys = zip(*(table[name].to_pylist() for name in ("conversation_id", "branch")), strict=True)
        start = 0
        for key, same in groupby(keys):
            n_rows = sum(1 for _ in same)
            yield key, table.slice(start, n_rows)
            start += n_rows


def _values(conversation: ScoredConversation, rows: pa.Table | None) -> dict[str, FloatArray]:
    values = {name: np.full(len(conversation), np.nan) for name in MEASURES}
    if rows is None:
        return values
    positions = rows["position"].to_numpy()
    if positions.max(initial=-1) >= len(conversation) or not np.array_equal(
        conversation.token_ids[positions], rows["token_id"].to_numpy()
    ):
        raise InputError(f"the exact values of {conversation.name} are of other tokens. Compare again.")
    for name in MEASURES:
        values[name][positions] = rows[name].to_numpy()
    return values
