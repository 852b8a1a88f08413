"""Score tables to aggregates and divergences."""

from tokscore.analytics.comparison import ComparedTokens, Comparison
from tokscore.analytics.diff import DiffReport, DiffRow, Interval, diff
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
from tokscore.analytics.groups import GroupBy, group_label
from tokscore.analytics.overlap import TokenError, TopK
from tokscore.analytics.stats import StatsReport, StatsRow, stats

__all__ = [
    "Bounds",
    "ComparedTokens",
    "Comparison",
    "DiffReport",
    "DiffRow",
    "Divergences",
    "GroupBy",
    "Interval",
    "Limits",
    "StatsReport",
    "StatsRow",
    "TokenError",
    "TopK",
    "diff",
    "group_label",
    "stats",
    "topk_divergences",
    "topk_entropy",
    "topk_gjs",
    "topk_kl_student_teacher",
    "topk_kl_teacher_student",
    "topk_limits",
    "topk_skew_kl",
    "topk_total_variation",
]
