"""The table that `tokscore diff --align text` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.diff import all_label, print_flat
from tokscore.cli.printing.reports.groups import shown_groups
from tokscore.cli.printing.tables import Column, print_rows

if TYPE_CHECKING:
    from tokscore.analytics import TextReport
    from tokscore.analytics.aligned_text.rows import TextRow

_COLUMNS = (
    Column("n_spans", "spans"),
    Column("teacher_bits_per_byte", "teacher bits/byte"),
    Column("student_bits_per_byte", "student bits/byte"),
    Column("log_ratio_per_span", "log-ratio/span"),
    Column("log_ratio_per_byte", "log-ratio/byte"),
    Column("share_one_to_one", "1:1"),
    Column("top1_agreement", "same top-1"),
    Column("gjs_lower", "GJS from"),
    Column("gjs_upper", "to"),
    Column("n_bytes", "bytes"),
    Column("n_teacher_tokens", "teacher tokens"),
    Column("n_student_tokens", "student tokens"),
    Column("log_ratio_per_student_token", "log-ratio/student token"),
)


def groups_with_values(report: TextReport) -> list[TextRow]:
    """Those that a table shows; a note counts the others."""
    return shown_groups(report.groups, report.by, lambda row: row.n_spans > 0, lambda row: row.n_tokens)


def print_text(report: TextReport, form: Format) -> None:
    """Print the groups and all spans together as a table or CSV."""
    groups = [*report.groups]
    if form is Format.TABLE:
        groups = groups_with_values(report)
    labels = [*(report.by.labels(row.group) for row in groups), all_label(report.by)]
    rows = [*zip(labels, [*groups, report.total], strict=True)]
    if form is Format.CSV:
        print_flat([(", ".join(label.values()), row.flat()) for label, row in rows])
        return
    by = [Column(name, name) for name in report.by.names]
    print_rows([*by, *_COLUMNS], [{**label, **row.flat()} for label, row in rows], form)
