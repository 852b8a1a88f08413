"""`tokscore diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli import compare_models, options
from tokscore.cli import html as page
from tokscore.cli.html import DEFAULT_MAX_MB, Html, HtmlMaxMb
from tokscore.cli.options import Format
from tokscore.cli.output import Cell, Column, note, print_json, print_rows

if TYPE_CHECKING:
    from tokscore.analytics import DiffReport, DiffRow, Interval

EPILOG = """Examples:

\b
  tokscore diff demo-output/teacher demo-output/student
  tokscore diff demo-output/teacher demo-output/student --alpha 0.1 --by source --format json
"""
_CSV_COLUMNS = (
    "group",
    "n_tokens",
    "n_unscored",
    "teacher_logprob",
    "student_logprob",
    "log_ratio",
    "kl_teacher_student_lower",
    "kl_teacher_student_upper",
    "kl_teacher_student_n_unbounded",
    "kl_student_teacher_lower",
    "kl_student_teacher_upper",
    "kl_student_teacher_n_unbounded",
    "gjs_lower",
    "gjs_upper",
    "unresolved",
    "unresolved_teacher",
    "unresolved_student",
    "top1_agreement",
)


def diff(
    teacher: Annotated[
        str, typer.Argument(metavar="TEACHER", help="Score dataset of one model; with --on, the model.")
    ],
    student: Annotated[
        str, typer.Argument(metavar="STUDENT", help="Score dataset of the other, or that model.")
    ],
    alpha: Annotated[
        float,
        options.option("--alpha", metavar="A", help="Weight of the teacher in the GJS, between 0 and 1."),
    ] = 0.5,
    by: options.Group = options.GroupBy.ROLE,
    on: compare_models.On = None,
    template: options.Template = None,
    engine: compare_models.Engine = options.EngineChoice.AUTO,
    top_k: compare_models.TopK = 20,
    dtype: compare_models.Dtype = options.DtypeChoice.AUTO,
    exact: compare_models.Exact = False,
    teacher_model: compare_models.TeacherModel = None,
    student_model: compare_models.StudentModel = None,
    html: Html = None,
    html_max_mb: HtmlMaxMb = DEFAULT_MAX_MB,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Compare two models token by token: KL both ways and GJS, by role.

    The datasets must hold the same tokens. Divergences are means per token in nats, as intervals: what the
    most likely ids leave open is never guessed, so the value over the whole vocabulary lies inside.
    Two models are compared with --on: they score the same ids, rendered with the student's template, and
    the scores are kept in the cache.
    """
    from tokscore.analytics import diff as compare
    from tokscore.rendering.errors import UsageError

    page.check(html)
    if exact and form is Format.CSV:
        raise UsageError("--exact prints a table of its own, which CSV has no place for; use --format json.")
    chosen = compare_models.OnOptions(template, engine.value, dtype.value, top_k)
    sides = compare_models.open_sides(teacher, student, on or [], chosen)
    sides = sides._replace(
        teacher_model=teacher_model or sides.teacher_model, student_model=student_model or sides.student_model
    )
    report = compare(sides.teacher, sides.student, alpha=alpha, by=by.value)
    whole = compare_models.exact(sides, [alpha], by.value) if exact else None
    if form is Format.JSON:
        print_json(report.to_dict() | ({} if whole is None else {"exact": whole.to_dict()}))
    else:
        _print_report(report, form)
        if whole is not None:
            compare_models.print_exact(whole, form)
    for n, name in ((report.n_only_teacher, teacher), (report.n_only_student, student)):
        if n:
            note(f"warning: {n:,} conversations are only in {name} and were left out.")
    unscored = f", {report.total.n_unscored:,} without a logprob" if report.total.n_unscored else ""
    note(f"{report.n_conversations:,} conversations, {report.total.n_tokens:,} tokens compared{unscored}")
    if html is not None:
        page.write_diff(sides.teacher, sides.student, html, alpha=alpha, max_mb=html_max_mb)


def _print_report(report: DiffReport, form: Format) -> None:
    from tokscore.analytics import group_label

    named = [(group_label(row.group, report.by), row) for row in report.groups]
    named.append(("(all)", report.total))
    if form is Format.CSV:
        print_rows([Column(key, key) for key in _CSV_COLUMNS], [_flat(*item) for item in named], form)
        return
    columns = (
        Column("group", report.by.value),
        Column("n_tokens", "tokens"),
        Column("teacher_logprob", "logprob T"),
        Column("student_logprob", "logprob S"),
        Column("kl_teacher_student", "KL(T||S)"),
        Column("kl_student_teacher", "KL(S||T)"),
        Column("gjs", f"GJS {report.alpha:g}"),
        Column("unresolved", "unresolved"),
        Column("top1_agreement", "top-1 agreement"),
    )
    print_rows(columns, [_flat(*item) | _intervals(item[1]) for item in named], form)
    note(
        "KL and GJS: mean per token in nats, [lower, upper]; "
        "'unbounded' where the top-k lists set no upper limit."
    )


def _flat(label: str, row: DiffRow) -> dict[str, Cell]:
    values: dict[str, Cell] = {
        "group": label,
        "n_tokens": row.n_tokens,
        "n_unscored": row.n_unscored,
        "teacher_logprob": row.teacher_logprob,
        "student_logprob": row.student_logprob,
        "log_ratio": row.log_ratio,
        "unresolved": row.unresolved,
        "unresolved_teacher": row.unresolved_teacher,
        "unresolved_student": row.unresolved_student,
        "top1_agreement": row.top1_agreement,
    }
    for name, interval in _named_intervals(row).items():
        values[f"{name}_lower"] = interval.lower
        values[f"{name}_upper"] = interval.upper
        values[f"{name}_n_unbounded"] = interval.n_unbounded
    return values


def _intervals(row: DiffRow) -> dict[str, Cell]:
    return {name: _shown(interval) for name, interval in _named_intervals(row).items()}


def _named_intervals(row: DiffRow) -> dict[str, Interval]:
    return {
        "kl_teacher_student": row.kl_teacher_student,
        "kl_student_teacher": row.kl_student_teacher,
        "gjs": row.gjs,
    }


def _shown(interval: Interval) -> str:
    if interval.lower is None:
        return "-"
    upper = "unbounded" if interval.upper is None else f"{interval.upper:.4f}"
    return f"[{interval.lower:.4f}, {upper}]"
