"""What people look at: single conversations token by token, and the HTML page."""

from tokscore.analytics.report.writing import (
    DEFAULT_MAX_MB,
    ReportSize,
    write_diff_report,
    write_stats_report,
)

__all__ = ["DEFAULT_MAX_MB", "ReportSize", "write_diff_report", "write_stats_report"]
