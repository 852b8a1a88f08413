"""`tokscore diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli import html as page
from tokscore.cli import options
from tokscore.cli.html import DEFAULT_MAX_MB, Html, HtmlMaxMb
from tokscore.cli.options import Format, OnErrorChoice
from tokscore.cli.output import counted, note, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.analytics.pairing import Skipped

EPILOG = """Examples:

\b
  tokscore diff demo-output/teacher demo-output/student
  tokscore diff demo-output/teacher demo-output/student --alpha 0.1 --by role,source --format json
"""
_SHOWN_SKIPPED = 3


def diff(
    teacher: Annotated[
        Path | None, typer.Argument(metavar="TEACHER", help="Score dataset of one model.", show_default=False)
    ] = None,
    student: Annotated[
        Path | None, typer.Argument(metavar="STUDENT", help="Score dataset of the other.", show_default=False)
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
    recorded: Annotated[
        Path | None,
        options.option(
            "--recorded",
            metavar="SCORES",
            help="Instead, compare the logprobs that a score dataset's input carried with the scored ones.",
        ),
    ] = None,
    sampled_by: Annotated[
        options.SamplerChoice | None,
        options.option(
            "--sampled-by",
            help="Who sampled every token at temperature 1: adds unbiased estimates of a KL.",
        ),
    ] = None,
    noise_floor: Annotated[
        Path | None,
        options.option(
            "--noise-floor", metavar="FILE", help="JSON of tokscore selfcheck, shown beside the gaps."
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        options.option(
            "--fail-if",
            metavar="CONDITION",
            help="End with exit code 1 where it holds, such as 'role=assistant: gjs_0.5.lower > 0.05'; "
            "may be given several times.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        options.option("--out", "-o", metavar="DIR", help="Directory for tokens.parquet and groups.parquet."),
    ] = None,
    on_error: options.OnErrorOption = OnErrorChoice.FAIL,
    html: Html = None,
    html_max_mb: HtmlMaxMb = DEFAULT_MAX_MB,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Compare two models token by token: KL both ways, GJS and more, by role.

    The datasets must hold the same tokens. Divergences are means per token in nats, as intervals: what the
    most likely ids leave open is never guessed, so the value over the whole vocabulary lies inside.
    """
    from tokscore.rendering.errors import ExitCode, UsageError

    groups = by or ["role"]
    if recorded is not None:
        if teacher is not None or fail_if or out is not None or sampled_by is not None or html is not None:
            raise UsageError(
                "--recorded takes one dataset and none of TEACHER, --fail-if, -o, --html and --sampled-by."
            )
        _print_recorded(recorded, groups, on_error, form)
        return
    if teacher is None or student is None:
        raise UsageError("expected two score datasets, TEACHER and STUDENT, or --recorded SCORES.")

    page.check(html)
    from tokscore.analytics import breaches, parse_gate, parse_group_by
    from tokscore.analytics import diff as compare
    from tokscore.cli.diff_report import print_report

    gates = [parse_gate(text, parse_group_by(groups)) for text in fail_if or ()]
    report = compare(
        teacher,
        student,
        alpha=alpha or 0.5,
        by=groups,
        on_error=on_error.value,
        sampled_by=None if sampled_by is None else sampled_by.value,
        noise_floor=noise_floor,
        out=out,
    )
    found = breaches(report, gates)
    if form is Format.JSON:
        print_json(report.to_dict())
    else:
        print_report(report, form)
    for n, name in ((report.n_only_teacher, teacher), (report.n_only_student, student)):
        if n:
            note(f"warning: {n:,} conversations are only in {name} and were left out.")
    _note_skipped(report.skipped)
    unscored = f", {report.total.n_unscored:,} without a logprob" if report.total.n_unscored else ""
    conversations = counted(report.n_conversations, "conversation")
    note(f"{conversations}, {report.total.n_tokens:,} tokens compared{unscored}")
    if out is not None:
        note(f"wrote {out}")
    if html is not None:
        settings = page.DiffSettings(report.alphas[0], noise_floor, on_error.value)
        page.write_diff(teacher, student, html, settings, max_mb=html_max_mb)
    for breach in found:
        note(f"failed: {breach.gate.text} (it is {breach.found:.6g})")
    if found:
        raise typer.Exit(ExitCode.FAILED)


def _print_recorded(scores: Path, by: Sequence[str], on_error: OnErrorChoice, form: Format) -> None:
    from tokscore.analytics import mismatch
    from tokscore.cli.diff_report import print_mismatch

    report = mismatch(scores, by=by, on_error=on_error.value)
    if form is Format.JSON:
        print_json(report.to_dict())
    else:
        print_mismatch(report, form)
    _note_skipped(report.skipped)
    conversations = counted(report.n_conversations, "conversation")
    without = f", {report.total.n_unrecorded:,} without both" if report.total.n_unrecorded else ""
    note(f"{conversations}, {report.total.n_tokens:,} tokens with both logprobs{without}")


def _note_skipped(skipped: Sequence[Skipped]) -> None:
    for each in skipped[:_SHOWN_SKIPPED]:
        note(f"skipped: {each.reason}")
    if skipped:
        note(f"warning: {counted(len(skipped), 'conversation')} could not be compared and were left out.")
