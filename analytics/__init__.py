"""Score tables to aggregates and divergences.

`stats` and `diff` give frames with a row per group of tokens, `stats_report` and `diff_report` the same as
objects with all that the commands print.
"""

from tokscore.analytics.advantages import advantages
from tokscore.analytics.comparison import ComparedBatch, Comparison
from tokscore.analytics.diff import DiffReport, diff_report
from tokscore.analytics.diff_rows import DiffRow, Interval
from tokscore.analytics.divergence import (
    Bounds,
    Divergences,
    Limits,
    topk_divergences,
    topk_entropy,
    topk_gjs,
    topk_kl_student_teacher,
    topk_kl_teacher_student,
    topk_limits,
    topk_skew_kl,
    topk_total_variation,
)
from tokscore.analytics.gates import breaches, parse_gate
from tokscore.analytics.groups import GroupBy, Grouping, group_label, parse_group_by
from tokscore.analytics.interface import diff, stats
from tokscore.analytics.mismatch import MismatchReport, mismatch
from tokscore.analytics.overlap import TokenError, TopK
from tokscore.analytics.stats import StatsReport, StatsRow, stats_report

__all__ = [
    "Bounds",
    "ComparedBatch",
    "Comparison",
    "DiffReport",
    "DiffRow",
    "Divergences",
    "GroupBy",
    "Grouping",
    "Interval",
    "Limits",
    "MismatchReport",
    "StatsReport",
    "StatsRow",
    "TokenError",
    "TopK",
    "advantages",
    "breaches",
    "diff",
    "diff_report",
    "group_label",
    "mismatch",
    "parse_gate",
    "parse_group_by",
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
]
