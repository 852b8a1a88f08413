"""`tokscore diff --align text`: two tokenizers, compared by the text that both read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.groups import note_more
from tokscore.cli.printing.tables import counted, note_absent_metadata, print_json
from tokscore.dataset.choices import OnError

if TYPE_CHECKING:
    from tokscore.analytics import TextReport
    from tokscore.analytics.gates import Breach

_SHOWN_DIFFERING = 3


class TextOptions(NamedTuple):
    """How texts are compared and shown.

    Attributes:
        by: The columns that make the groups.
        sort: The number that they are ordered by.
        top: How many are shown.
        on_error: What a bad conversation does.
        fail_if: Conditions.
        out: Directory of the tables.
        form: How to print.
    """

    by: Sequence[str]
    sort: str | None
    top: int | None
    on_error: OnError
    fail_if: Sequence[str]
    out: Path | None
    form: Format


class Compared(NamedTuple):
    """The comparison, and the conditions that hold."""

    report: TextReport
    breaches: list[Breach]


def compare_text(teacher: str, student: str, chosen: TextOptions) -> Compared:
    """Print the comparison."""
    from tokscore.analytics import breaches, parse_gate, parse_group_by, text_report
    from tokscore.analytics.aligned_text.rows import metric_names
    from tokscore.analytics.gates import check_gates, check_groups
    from tokscore.analytics.groups.ranking import Ranking
    from tokscore.cli.printing.reports.text import groups_with_values, print_text

    gates = [parse_gate(text, parse_group_by(chosen.by)) for text in chosen.fail_if]
    check_gates(gates, metric_names())
    ranking = Ranking(chosen.sort, chosen.top, metric_names())
    report = text_report(teacher, student, by=chosen.by, on_error=chosen.on_error, out=chosen.out)
    check_groups(report, gates)
    found = breaches(report, gates)
    groups = groups_with_values(report) if chosen.form is Format.TABLE else report.groups
    shown = replace(report, groups=ranking.apply(groups))
    if chosen.form is Format.JSON:
        print_json(shown.to_dict())
    else:
        print_text(shown, chosen.form)
    note_more(len(groups), len(shown.groups))
    note_absent_metadata(report.by, [row.group for row in report.groups])
    _note_totals(report, teacher, student)
    if chosen.out is not None:
        note(f"wrote {chosen.out}")
    return Compared(report, found)


def _note_totals(report: TextReport, teacher: str, student: str) -> None:
    for n, name in ((report.n_only_teacher, teacher), (report.n_only_student, student)):
        if n:
            note(f"warning: only in {name}, and left out: {counted(n, 'conversation')}.")
    for each in report.differing[:_SHOWN_DIFFERING]:
        branch = f" branch {each.branch}" if each.branch else ""
        note(
            f"not compared: {each.source} of message {each.message_index} of conversation "
            f"{each.conversation_id!r}{branch}, whose text differs."
        )
    if report.differing:
        note(f"warning: the text of {counted(len(report.differing), 'field')} differs between the two.")
    total = report.total
    unscored = f", {total.n_unscored_spans:,} without a logprob" if total.n_unscored_spans else ""
    conversations = counted(report.n_conversations, "conversation")
    note(f"{conversations}, {counted(total.n_spans, 'span')} compared{unscored}")
    note(
        f"content tokens in no span: {total.n_teacher_unaligned:,} of {teacher}, "
        f"{report.n_student_unaligned:,} of {student}. A logprob is that of one tokenization of the text, "
        "given what each model read before it; the gaps are those of model, tokenizer and template together."
    )
