"""Notes about what has no mean: a KL or a logprob that is infinite at some tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import agreeing, counted

if TYPE_CHECKING:
    from tokscore.analytics.comparison.diff import DiffReport
    from tokscore.analytics.exact.report import ExactReport

_DIRECTIONS = (("teacher", "student"), ("student", "teacher"))


def note_infinite(report: DiffReport, exact: ExactReport | None) -> None:
    """Say where a mean is infinite, and why."""
    _note_impossible(report)
    if exact is not None:
        _note_exact(exact)
        return
    total = report.total
    for first, second in _DIRECTIONS:
        if not total.intervals[f"kl_{first}_{second}"].is_infinite:
            continue
        n = total.n_beyond_vocabulary
        reason = f"the {second} rules out ids that the {first} lists."
        if n:
            reason = (
                f"{counted(n, 'token')} {agreeing(n, 'is or lists', 'are or list')} ids that only one of the "
                "models has, which are impossible for the other. Nothing is renormalised; GJS and TV stay "
                "finite there."
            )
        note(f"KL({first[0].upper()}||{second[0].upper()}) is infinite: {reason}")


def _note_impossible(report: DiffReport) -> None:
    for side in ("teacher", "student"):
        if report.total.n_tokens and report.total.points[f"{side}_logprob"] is None:
            note(
                f"the {side} rules tokens out that are there (a logprob of -inf), which leaves no mean of "
                "its logprobs where such tokens are, nor one of their differences."
            )


def _note_exact(report: ExactReport) -> None:
    headings = {measure.name: measure.heading for measure in report.measures}
    sizes = {"teacher": report.teacher_vocab_size, "student": report.student_vocab_size}
    for first, second in _DIRECTIONS:
        name = f"kl_{first}_{second}"
        n_infinite = report.total.n_infinite[name]
        if not n_infinite:
            continue
        reason = f"there the {second} rules out ids that the {first} allows."
        if sizes[first] > sizes[second]:
            reason = (
                f"the {first} has {sizes[first]:,} ids and the {second} {sizes[second]:,}, and those that "
                f"only the {first} has are impossible for the {second}. Nothing is renormalised; the other "
                "KL, GJS and TV stay finite there."
            )
        note(
            f"{headings[name]} is infinite at {n_infinite:,} of {counted(report.total.n_tokens, 'token')}, "
            f"and has no mean where such tokens are: {reason}"
        )
