"""Score tables to aggregates and divergences.

In: datasets with a row of scores per token. Out: answers by group of tokens, with their limits.
Must not know: templates, how an engine works, or how a result is printed.

`stats` and `diff` give frames with a row per group of tokens, `stats_report` and `diff_report` the same as
objects with all that the commands print.
"""

from tokscore.analytics.comparison.compare import ComparedBatch, Comparison
from tokscore.analytics.comparison.diff import DiffReport, diff_report
from tokscore.analytics.comparison.diff_rows import DiffRow, Interval
from tokscore.analytics.divergence.advantages import advantages
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
from tokscore.analytics.mismatch import MismatchReport, mismatch
from tokscore.analytics.selection.choosing import Selection, select
from tokscore.analytics.selection.records import write_records
from tokscore.analytics.training.export import export
from tokscore.dataset.choices import GroupBy

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
    "topk_divergences",
    "topk_entropy",
    "topk_gjs",
    "topk_kl_student_teacher",
    "topk_kl_teacher_student",
    "topk_limits",
    "topk_skew_kl",
    "topk_total_variation",
    "write_records",
]
