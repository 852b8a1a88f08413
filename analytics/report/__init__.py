"""The HTML page: tables, charts, and single conversations token by token.

In: the report of `stats` or `diff`, and its datasets. Out: one file that loads nothing else.
Must not know: engines, templates, or the command line.
"""

from tokscore.analytics.report.writing import (
    DEFAULT_MAX_MB,
    ReportSize,
    write_diff_report,
    write_mismatch_report,
    write_stats_report,
)

__all__ = ["DEFAULT_MAX_MB", "ReportSize", "write_diff_report", "write_mismatch_report", "write_stats_report"]
