"""`tokscore diff`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.options.settings import setting_options
from tokscore.cli.printing import html as page
from tokscore.cli.printing.console import note
from tokscore.cli.printing.html import DEFAULT_MAX_MB, Html, HtmlMaxMb
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.groups import note_more
from tokscore.cli.printing.tables import (
    agreeing,
    counted,
    note_absent_metadata,
    print_all_columns,
    print_json,
)
from tokscore.cli.running import compare_models, compare_recorded, compare_text
from tokscore.dataset.choices import Align, OnError, Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.analytics.comparison.pairing import Skipped
    from tokscore.analytics.gates import Breach

EPILOG = """Examples:

\b
  tokscore diff demo-output/teacher demo-output/student
  tokscore diff demo-output/teacher demo-output/student --alpha 0.1 --by role,source --format json
"""
_SHOWN_SKIPPED = 3


@setting_options
def diff(
    *,
    teacher: Annotated[
        str | None,
        typer.Argument(
            metavar="TEACHER", help="Score dataset of one model; with --on, the model.", show_default=False
        ),
    ] = None,
    student: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDENT", help="Score dataset of the other, or that model.", show_default=False
        ),
    ] = None,
    alpha: Annotated[
        list[float] | None,
        options.option(
            "--alpha",
            metavar="A",
            help="Weight of the teacher in GJS and skew KL, between 0 and 1; may be given several times.",
            show_default="0.5",
        ),
    ] = None,
    by: options.Groups = None,
    sort: options.Sort = None,
    top: options.Top = None,
    worst: options.Worst = None,
    recorded: compare_recorded.Recorded = None,
    recorded_against: compare_recorded.Against = None,
    sampled_by: Annotated[
        Sampler | None,
        options.option(
            "--sampled-by",
            help="Who sampled the answers at temperature 1: adds unbiased estimates of a KL, from sampled "
            "tokens alone.",
        ),
    ] = None,
    noise_floor: Annotated[
        Path | None,
        options.option(
            "--noise-floor",
            metavar="FILE",
            help="JSON of tokscore selfcheck; its noise is shown beside the gaps, and --exact allows for it.",
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        options.option(
            "--fail-if",
            metavar="CONDITION",
            help="End with exit code 1 where it holds, such as 'role=assistant: gjs_0.5.lower > 0.05' or "
            "'exact.summary.mean_kld > 0.1' (--exact), or where its number has no value; may be given "
            "several times.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        options.option(
            "--out",
            "-o",
            metavar="DIR",
            help="Directory for tokens.parquet and groups.parquet, with --exact exact.parquet too.",
            parser=options.output_path,
        ),
    ] = None,
    align: Annotated[
        Align,
        options.option(
            "--align",
            help="Compare all tokens, which must be equal; only the content that two templates share; or, "
            "for two tokenizers, the text of messages, span by span.",
        ),
    ] = Align.TOKENS,
    on_error: options.OnErrorNoted = OnError.FAIL,
    on: compare_models.On = None,
    rendering: compare_models.Rendering,
    engine: compare_models.Engine,
    exact: compare_models.Exact = False,
    summary: compare_models.Summary = None,
    teacher_model: compare_models.TeacherModel = None,
    student_model: compare_models.StudentModel = None,
    details: Annotated[
        bool, options.option("--details", help="Print all measures, ratios and confidence limits.")
    ] = False,
    html: Html = None,
    html_max_mb: HtmlMaxMb = DEFAULT_MAX_MB,
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Compare two models token by token: KL both ways, GJS and more, by role.

    The datasets must hold the same tokens. Divergences are means per token in nats, as intervals: what the
    most likely ids leave open is never guessed, so the value over the whole vocabulary lies inside.
    Two models are compared with --on: they score the same ids, rendered with the student's template, and
    the scores are kept in the cache.
    """
    print_all_columns(wide)
    from tokscore.dataset.errors import UsageError

    page.check(html, out)
    if worst is not None and any((by, sort, top)):
        raise UsageError("--worst is --by conversation_id with --sort and --top; leave those out.")
    groups = by or ["role" if worst is None else "conversation_id"]
    exact = exact or summary is not None
    is_content = align is Align.CONTENT
    if align is Align.TEXT:
        if any((recorded, on, exact, html, alpha, sampled_by, noise_floor, summary, worst)):
            raise UsageError(
                "--align text compares spans of text; leave out --recorded, --on, --exact, --summary, "
                "--html, --alpha, --sampled-by, --noise-floor and --worst."
            )
        if teacher is None or student is None:
            raise UsageError("expected two score datasets, TEACHER and STUDENT.")
        found_text = compare_text.compare_text(
            teacher,
            student,
            compare_text.TextOptions(groups, sort, top, on_error, fail_if or (), out, form),
        )
        _note_skipped(found_text.report.skipped)
        _end(found_text.breaches)
        return
    if is_content and any((on, exact, html)):
        raise UsageError(
            "--align content is for datasets of different tokens; leave out --on, which renders once, and "
            "--exact and --html, which need equal tokens."
        )
    if recorded is not None:
        if any((teacher, sampled_by, on, exact, is_content, alpha)):
            raise UsageError(
                "--recorded takes one dataset or file and none of TEACHER, --sampled-by, --on, --exact, "
                "--alpha and --align content."
            )
        wanted = compare_recorded.RecordedOptions(
            recorded_against,
            groups,
            sort if worst is None else compare_recorded.WORST,
            top or worst,
            on_error,
            fail_if or (),
            noise_floor,
            out,
            form,
            details,
            "--top" if worst is None else "--worst",
        )
        if html is not None:
            compare_recorded.check_page(recorded, recorded_against)
        compared = compare_recorded.compare_recorded(recorded, wanted)
        _note_skipped(compared.report.skipped)
        if recorded.is_dir():
            _note_branches(recorded)
        if html is not None:
            page.write_mismatch(
                recorded, html, max_mb=html_max_mb, noise_floor=noise_floor, on_error=on_error
            )
        _end(compared.breaches)
        return
    if recorded_against is not None:
        raise UsageError("--recorded-against goes with --recorded.")
    if teacher is None or student is None:
        raise UsageError("expected two score datasets, TEACHER and STUDENT, or --recorded SCORES.")

    from tokscore.analytics import breaches, diff_report, parse_gate, parse_group_by, stats_report
    from tokscore.analytics.comparison.diff_rows import metric_names
    from tokscore.analytics.comparison.noise import read_measured_on
    from tokscore.analytics.comparison.provenance import provenance_notes
    from tokscore.analytics.divergence.intervals import checked_alphas
    from tokscore.analytics.divergence.measures import alpha_name
    from tokscore.analytics.exact.output import whole_folder, write_exact
    from tokscore.analytics.exact.rows import metric_names as exact_names
    from tokscore.analytics.gates import check_gates, check_groups
    from tokscore.analytics.groups.ranking import Ranking
    from tokscore.cli.printing.reports.diff import groups_with_values, note_confidence, print_report
    from tokscore.cli.printing.reports.exact import print_exact, print_summary
    from tokscore.cli.printing.reports.infinite import note_infinite

    gates = [parse_gate(text, parse_group_by(groups)) for text in fail_if or ()]
    for gate in gates:
        if gate.is_exact and not exact:
            raise UsageError(f"{gate.text!r} is about exact values; add --exact.")
    alphas = checked_alphas(alpha or [0.5])
    names = metric_names(alphas, sampled_by)
    check_gates([gate for gate in gates if not gate.is_exact], names)
    check_gates([gate for gate in gates if gate.is_exact], exact_names(alphas))
    ranking = Ranking(sort if worst is None else f"{alpha_name('gjs', alphas[0])}.lower", top or worst, names)
    # Only the summary has no use for them: files, pages and conditions do.
    are_used = summary is None or any((out, html)) or any(not gate.is_exact for gate in gates)
    chosen = compare_models.OnOptions(rendering, engine, intervals=are_used)

    def check_tokens(tokens: Path) -> None:
        if any(gate.group for gate in gates):
            check_groups(stats_report(tokens, by=groups), gates)

    sides = compare_models.open_sides(teacher, student, on or [], chosen, check_tokens)
    sides = sides._replace(
        teacher_model=teacher_model or sides.teacher_model, student_model=student_model or sides.student_model
    )
    whole = None
    with ExitStack() as stack:
        # All of it appears together: exact values may take hours.
        folder = out if out is None or not exact else stack.enter_context(whole_folder(out))
        report = diff_report(
            sides.teacher,
            sides.student,
            alpha=alpha or 0.5,
            by=groups,
            on_error=on_error,
            sampled_by=sampled_by,
            noise_floor=noise_floor,
            out=folder,
            align=align,
        )
        check_groups(report, gates)
        found = breaches(report, [gate for gate in gates if not gate.is_exact])
        if exact:
            whole = compare_models.exact(
                sides,
                report,
                engine=engine.engine,
                on_error=on_error,
                trust_remote_code=rendering.trust_remote_code,
                noise_floor=noise_floor,
            )
            found += breaches(report, [gate for gate in gates if gate.is_exact], whole)
            if folder is not None:
                write_exact(folder, report, whole)
    rows = groups_with_values(report) if form is Format.TABLE else report.groups
    shown = replace(report, groups=ranking.apply(rows))
    shown_exact = None
    if whole is not None:
        of_groups = {row.group: row for row in whole.groups}
        in_order = (of_groups.get(row.group) for row in shown.groups)
        shown_exact = replace(whole, groups=tuple(row for row in in_order if row is not None))
    if shown_exact is not None and summary is not None:
        print_summary(shown_exact.summary, form)
    elif form is Format.JSON:
        print_json(shown.to_dict() | ({} if shown_exact is None else {"exact": shown_exact.to_dict()}))
    else:
        print_report(shown, form, exact=shown_exact, details=details)
        if shown_exact is not None and form is Format.TABLE:
            print_exact(shown_exact, details=details)
    note_more(len(rows), len(shown.groups), "--top" if worst is None else "--worst")
    note_absent_metadata(report.by, [row.group for row in report.groups])
    note_confidence(report)
    note_infinite(report, whole)
    for n, name in ((report.n_only_teacher, teacher), (report.n_only_student, student)):
        if n:
            note(f"warning: only in {name}, and left out: {counted(n, 'conversation')}.")
    _note_skipped(report.skipped)
    unscored = f", {report.total.n_unscored:,} without a logprob" if report.total.n_unscored else ""
    conversations = counted(report.n_conversations, "conversation")
    note(f"{conversations}, {counted(report.total.n_tokens, 'token')} compared{unscored}")
    measured_on = None if noise_floor is None else read_measured_on(noise_floor)
    for text in provenance_notes(sides.teacher, sides.student, measured_on):
        note(f"warning: {text}")
    _note_branches(sides.teacher)
    if report.alignment is not None:
        found_tokens = report.alignment
        note(
            f"content tokens without an equal one in the same place: {found_tokens.n_teacher_unaligned:,} of "
            f"{teacher}, {found_tokens.n_student_unaligned:,} of {student}. The models read different text "
            "before each token, so that the gaps are those of model and template together."
        )
    if out is not None:
        note(f"wrote {out}")
    if html is not None:
        settings = page.DiffSettings(report.alphas[0], noise_floor, on_error)
        page.write_diff(sides.teacher, sides.student, html, settings, max_mb=html_max_mb, exact=whole)
    _end(found)


def _end(found: Sequence[Breach]) -> None:
    """Name the conditions that hold, and end with a failure where any does."""
    from tokscore.dataset.errors import ExitCode

    for breach in found:
        note(f"failed: {breach}")
    if found:
        raise typer.Exit(ExitCode.FAILED)


def _note_branches(dataset: Path) -> None:
    from tokscore.analytics.groups.message_sizes import n_branching
    from tokscore.dataset.manifest import read_manifest

    is_text = read_manifest(dataset).settings.get("chunk") is not None  # what its windows share is context
    n = 0 if is_text else n_branching(dataset)
    if n:
        note(
            f"{counted(n, 'conversation')} with several branches: a token that branches share counts once "
            "for each of them in all means."
        )


def _note_skipped(skipped: Sequence[Skipped]) -> None:
    for each in skipped[:_SHOWN_SKIPPED]:
        note(f"skipped: {each.reason}")
    if skipped:
        were = agreeing(len(skipped), "was", "were")
        note(f"warning: {counted(len(skipped), 'conversation')} could not be compared and {were} left out.")
