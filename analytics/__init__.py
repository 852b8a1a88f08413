"""Score tables to aggregates and divergences.

In: datasets with a row of scores per token. Out: answers by group of tokens, with their limits.
Must not know: templates, how an engine works, or how a result is printed.

`stats` and `diff` give frames with a row per group of tokens, `stats_report` and `diff_report` the same as
objects with all that the commands print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.dataset.interactive.lazy_names import lazy_names

if TYPE_CHECKING:
    from tokscore.analytics.aligned_text.advantages import advantages
    from tokscore.analytics.aligned_text.report import TextReport, text_report
    from tokscore.analytics.comparison.compare import ComparedBatch, Comparison
    from tokscore.analytics.comparison.diff import DiffReport, diff_report
    from tokscore.analytics.comparison.diff_rows import DiffRow, Interval
    from tokscore.analytics.divergence.intervals import (
        Divergences,
        topk_divergences,
        topk_entropy,
        topk_gjs,
        topk_kl_student_teacher,
        topk_kl_teacher_student,
        topk_limits,
        topk_skew_kl,
        topk_total_variation,
    )
    from tokscore.analytics.divergence.measures import MEASURES, Bounds, Measure, TokenMeasures
    from tokscore.analytics.divergence.topk import TokenError, TopK
    from tokscore.analytics.frames import diff, stats
    from tokscore.analytics.gates import breaches, parse_gate
    from tokscore.analytics.groups.grouping import Grouping, group_label, parse_group_by
    from tokscore.analytics.groups.stats import StatsReport, StatsRow, stats_report
    from tokscore.analytics.groups.worst import worst_tokens
    from tokscore.analytics.recorded.report import MismatchReport, mismatch
    from tokscore.analytics.selection.choosing import select
    from tokscore.analytics.selection.records import write_records
    from tokscore.analytics.selection.selected import Selection
    from tokscore.analytics.training.export import export
    from tokscore.dataset.choices import GroupBy

# Loaded when first asked for: most commands need few of them, and some import numba.
_LAZY = {
    "Bounds": "tokscore.analytics.divergence.measures",
    "ComparedBatch": "tokscore.analytics.comparison.compare",
    "Comparison": "tokscore.analytics.comparison.compare",
    "DiffReport": "tokscore.analytics.comparison.diff",
    "DiffRow": "tokscore.analytics.comparison.diff_rows",
    "Divergences": "tokscore.analytics.divergence.intervals",
    "GroupBy": "tokscore.dataset.choices",
    "Grouping": "tokscore.analytics.groups.grouping",
    "Interval": "tokscore.analytics.comparison.diff_rows",
    "MEASURES": "tokscore.analytics.divergence.measures",
    "Measure": "tokscore.analytics.divergence.measures",
    "MismatchReport": "tokscore.analytics.recorded.report",
    "Selection": "tokscore.analytics.selection.selected",
    "StatsReport": "tokscore.analytics.groups.stats",
    "StatsRow": "tokscore.analytics.groups.stats",
    "TextReport": "tokscore.analytics.aligned_text.report",
    "TokenError": "tokscore.analytics.divergence.topk",
    "TokenMeasures": "tokscore.analytics.divergence.measures",
    "TopK": "tokscore.analytics.divergence.topk",
    "advantages": "tokscore.analytics.aligned_text.advantages",
    "breaches": "tokscore.analytics.gates",
    "diff": "tokscore.analytics.frames",
    "diff_report": "tokscore.analytics.comparison.diff",
    "export": "tokscore.analytics.training.export",
    "group_label": "tokscore.analytics.groups.grouping",
    "mismatch": "tokscore.analytics.recorded.report",
    "parse_gate": "tokscore.analytics.gates",
    "parse_group_by": "tokscore.analytics.groups.grouping",
    "select": "tokscore.analytics.selection.choosing",
    "stats": "tokscore.analytics.frames",
    "stats_report": "tokscore.analytics.groups.stats",
    "text_report": "tokscore.analytics.aligned_text.report",
    "topk_divergences": "tokscore.analytics.divergence.intervals",
    "topk_entropy": "tokscore.analytics.divergence.intervals",
    "topk_gjs": "tokscore.analytics.divergence.intervals",
    "topk_kl_student_teacher": "tokscore.analytics.divergence.intervals",
    "topk_kl_teacher_student": "tokscore.analytics.divergence.intervals",
    "topk_limits": "tokscore.analytics.divergence.intervals",
    "topk_skew_kl": "tokscore.analytics.divergence.intervals",
    "topk_total_variation": "tokscore.analytics.divergence.intervals",
    "worst_tokens": "tokscore.analytics.groups.worst",
    "write_records": "tokscore.analytics.selection.records",
}

__all__ = [
    "MEASURES",
    "Bounds",
    "ComparedBatch",
    "Comparison",
    "DiffReport",
    "DiffRow",
    "Divergences",
    "GroupBy",
    "Grouping",
    "Interval",
    "Measure",
    "MismatchReport",
    "Selection",
    "StatsReport",
    "StatsRow",
    "TextReport",
    "TokenError",
    "TokenMeasures",
    "TopK",
    "advantages",
    "breaches",
    "diff",
    "diff_report",
    "export",
    "group_label",
    "mismatch",
    "parse_gate",
    "parse_group_by",
    "select",
    "stats",
    "stats_report",
    "text_report",
    "topk_divergences",
    "topk_entropy",
    "topk_gjs",
    "topk_kl_student_teacher",
    "topk_kl_teacher_student",
    "topk_limits",
    "topk_skew_kl",
    "topk_total_variation",
    "worst_tokens",
    "write_records",
]


__getattr__, __dir__ = lazy_names(__name__, _LAZY, __all__)
