"""`tokscore diff --recorded`: the logprobs that an input carried, against others of the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.groups import note_more
from tokscore.cli.printing.tables import agreeing, counted, note_absent_metadata, print_json
from tokscore.dataset.choices import OnError, RecordedAgainst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.analytics import MismatchReport
    from tokscore.analytics.gates import Breach

Recorded = Annotated[
    Path | None,
    options.option(
        "--recorded",
        metavar="DATASET|FILE",
        help="Instead, compare the logprobs that the input of a dataset carried with the scored ones; of a "
        "token dataset, or a file of prime-rl or NeMo RL, with those that its trainer recorded beside them.",
    ),
]
Against = Annotated[
    RecordedAgainst | None,
    options.option(
        "--recorded-against",
        help="For --recorded, whose logprobs these are held against.",
        show_default="scored, trainer without scores",
    ),
]


# The number by which --worst orders conversations.
WORST = "off_policy.mean_abs_log_ratio"


class RecordedOptions(NamedTuple):
    """How recorded logprobs are compared and shown.

    Attributes:
        against: Whose the others are.
        by: The columns that make the groups.
        sort: The number that they are ordered by.
        top: How many are shown.
        on_error: What a bad conversation does.
        fail_if: Conditions.
        noise_floor: JSON of `tokscore selfcheck`.
        out: Directory of the tables.
        form: How to print.
        details: Print all tables.
    """

    against: RecordedAgainst | None
    by: Sequence[str]
    sort: str | None
    top: int | None
    on_error: OnError
    fail_if: Sequence[str]
    noise_floor: Path | None
    out: Path | None
    form: Format
    details: bool
    top_option: str = "--top"


def check_page(recorded: Path, against: RecordedAgainst | None) -> None:
    """Refuse a page of what has no scores.

    Raises:
        UsageError: Other logprobs than those of scores would be compared.
    """
    from tokscore.analytics.recorded.report import open_pairs
    from tokscore.dataset.errors import UsageError

    if open_pairs(recorded, against).against is not RecordedAgainst.SCORED:
        raise UsageError(
            "--html shows recorded logprobs beside scored ones; give a score dataset, or leave it out."
        )


class Compared(NamedTuple):
    """The comparison, and the conditions that hold."""

    report: MismatchReport
    breaches: list[Breach]


def compare_recorded(recorded: Path, chosen: RecordedOptions) -> Compared:
    """Print the comparison."""
    from tokscore.analytics import breaches, mismatch, parse_gate, parse_group_by
    from tokscore.analytics.gates import check_gates
    from tokscore.analytics.groups.ranking import Ranking
    from tokscore.analytics.recorded.confidence import metric_names
    from tokscore.analytics.recorded.report import open_pairs
    from tokscore.cli.printing.reports.diff import note_confidence
    from tokscore.cli.printing.reports.mismatch import groups_with_values, print_mismatch

    gates = [parse_gate(text, parse_group_by(chosen.by)) for text in chosen.fail_if]
    names = metric_names(open_pairs(recorded, chosen.against).against)
    check_gates(gates, names)
    ranking = Ranking(chosen.sort, chosen.top, names)
    report = mismatch(
        recorded,
        by=chosen.by,
        on_error=chosen.on_error,
        against=chosen.against,
        noise_floor=chosen.noise_floor,
        out=chosen.out,
    )
    found = breaches(report, gates)
    groups = groups_with_values(report) if chosen.form is Format.TABLE else report.groups
    shown = replace(report, groups=ranking.apply(groups))
    if chosen.form is Format.JSON:
        print_json(shown.to_dict())
    else:
        print_mismatch(shown, chosen.form, details=chosen.details)
    note_more(len(groups), len(shown.groups), chosen.top_option)
    note_absent_metadata(report.by, [row.group for row in report.groups])
    note_confidence(report)
    _note_totals(report)
    if chosen.out is not None:
        note(f"wrote {chosen.out}")
    return Compared(report, found)


def _note_totals(report: MismatchReport) -> None:
    conversations = counted(report.n_conversations, "conversation")
    without = f", {report.total.n_unrecorded:,} without both" if report.total.n_unrecorded else ""
    note(f"{conversations}, {counted(report.total.n_tokens, 'token')} with both logprobs{without}")
    if report.total.n_tokens and not report.total.mismatch_kl.n_tokens:
        note("warning: no token with both logprobs is known to be sampled, so that there is no KL.")
    if report.total.recorded_logprob == 0:
        note(
            "warning: every recorded logprob is 0, as programs write that have none: the differences say "
            "nothing about the engine."
        )
    for failure in report.failures[:_SHOWN_FAILURES]:
        note(f"not read: {failure.skipped().error()}")
    if report.failures:
        were = agreeing(len(report.failures), "was", "were")
        note(f"warning: {counted(len(report.failures), 'record')} could not be read and {were} left out.")


_SHOWN_FAILURES = 3
