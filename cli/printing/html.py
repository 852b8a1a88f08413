"""`--html`: a report to look at beside the printed one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import agreeing, counted
from tokscore.dataset.errors import UsageError

if TYPE_CHECKING:
    from tokscore.analytics.exact.report import ExactReport
    from tokscore.analytics.report import ReportSize

DEFAULT_MAX_MB = 25.0

Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        show_envvar=False,
        metavar="FILE",
        help="Also write a report to look at: one HTML file that loads nothing else.",
    ),
]
HtmlMaxMb = Annotated[
    float,
    typer.Option(
        "--html-max-mb",
        show_envvar=False,
        metavar="MB",
        help="Limit of that file: it shows the conversations that diverge most, or are least likely, as many "
        "as fit.",
    ),
]


def check(path: Path | None, folder: Path | None = None) -> None:
    """Raise a `UsageError` where a report cannot be written, or what draws it is not installed.

    Args:
        path: Of the report, None without one.
        folder: What else is asked for is written there.
    """
    from tokscore.dataset.files import check_is_file_name, check_is_new_folder

    if folder is not None:
        check_is_new_folder(folder)
    if path is not None:
        if not path.name:
            raise UsageError(f"--html is {path}; expected the name of a file.")
        from tokscore.analytics.report.charts import check_available

        check_is_file_name(path)
        check_available()


class DiffSettings(NamedTuple):
    """Settings of a comparison: weight of the teacher, file of the noise floor, what an error does."""

    alpha: float
    noise_floor: Path | None
    on_error: str


def write_diff(
    teacher: Path,
    student: Path,
    path: Path,
    settings: DiffSettings,
    *,
    max_mb: float,
    exact: ExactReport | None = None,
) -> None:
    """Write the report of a comparison, with exact values where they are known, and say what is in it."""
    from tokscore.analytics.report import write_diff_report

    _say(path, write_diff_report(teacher, student, path, max_mb=max_mb, exact=exact, **settings._asdict()))


def write_mismatch(
    dataset: Path, path: Path, *, max_mb: float, noise_floor: Path | None, on_error: str
) -> None:
    """Write the report of recorded beside scored logprobs and say what is in it."""
    from tokscore.analytics.report import write_mismatch_report

    found = write_mismatch_report(dataset, path, max_mb=max_mb, noise_floor=noise_floor, on_error=on_error)
    _say(path, found)


def write_stats(dataset: Path, path: Path, *, max_mb: float) -> None:
    """Write the report of one score dataset and say what is in it."""
    from tokscore.analytics.report import write_stats_report

    _say(path, write_stats_report(dataset, path, max_mb=max_mb))


def _say(path: Path, size: ReportSize) -> None:
    left_out = size.n_conversations - size.n_kept
    more = f"; {left_out:,} {agreeing(left_out, 'was', 'were')} left out (--html-max-mb)" if left_out else ""
    shown = counted(size.n_kept, "conversation")
    note(f"wrote {path}: {size.size_bytes / 1e6:.1f} MB, {shown} token by token{more}")
