"""The tables that `tokscore diff --recorded` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.reports.diff import (
    NOISE,
    OFF_POLICY,
    all_label,
    noise_cells,
    note_noise,
    off_policy_cells,
    print_flat,
    shown_limits,
)
from tokscore.cli.printing.reports.groups import shown_groups
from tokscore.cli.printing.tables import Cell, Column, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokscore.analytics import MismatchReport
    from tokscore.analytics.recorded.rows import MismatchRow

_KL = (
    Column("k1", "KL, k1", 6),
    Column("k3", "KL, k3", 6),
)
# Numbers whose limits are printed, and their headings.
_LIMITED = {
    "log_ratio": "log-ratio",
    "k1": "KL, k1",
    "k3": "KL, k3",
    "effective_sample_size": "ESS",
    "outside_0_9_1_1": "outside 0.9-1.1",
    "outside_0_5_2": "outside 0.5-2",
}
_CONFIDENCE = "95 % confidence, from resampling conversations"


def groups_with_values(report: MismatchReport) -> list[MismatchRow]:
    """Those that a table shows; a note counts the others."""
    return shown_groups(
        report.groups, report.by, lambda row: row.n_tokens > 0, lambda row: row.n_tokens + row.n_unrecorded
    )


def print_mismatch(report: MismatchReport, form: Format, *, details: bool = False) -> None:
    """Print recorded logprobs against others as tables or CSV.

    Args:
        report: The comparison.
        form: Table or CSV.
        details: Print all tables, not only the first.
    """
    groups = [*report.groups]
    if form is Format.TABLE:
        groups = groups_with_values(report)
    labels = [*(report.by.labels(row.group) for row in groups), all_label(report.by)]
    rows = [*zip(labels, [*groups, report.total], strict=True)]
    noise = noise_cells(report.noise_floor)
    if form is Format.CSV:
        print_flat([(", ".join(label.values()), row.flat()) for label, row in rows], noise)
        return
    by = [Column(name, name) for name in report.by.names]
    cells = [{**label, **_cells(row), **noise} for label, row in rows]
    first, *others = OFF_POLICY
    ess = next(column for column in OFF_POLICY if column.key == "effective_sample_size")
    columns = [
        Column("n_tokens", "tokens"),
        *_KL,
        Column("log_ratio", "log-ratio"),
        first,
        *(NOISE if noise else ()),
        ess,
        Column("n_sampled", "sampled"),
        Column("recorded_logprob", "recorded"),
        Column("other_logprob", report.against.value),
    ]
    print_rows([*by, *columns], cells, form)
    if details:
        rest = [column for column in others if column is not ess]
        print_rows([*by, *rest], cells, form, title=f"Ratios {report.against} / recorded")
        _print_limits(report, [(label, row) for label, row in rows if row.confidence])
    note(
        f"k1 and k3 estimate KL(recorded || {report.against}) in nats per sampled token: the means of "
        f"-log r and of r - 1 - log r, with r = p_{report.against} / p_recorded."
        + ("" if details else " More ratios and confidence limits: --details.")
    )
    note_noise(report.noise_floor)


def _print_limits(report: MismatchReport, rows: Sequence[tuple[dict[str, str], MismatchRow]]) -> None:
    columns = (
        *(Column(name, name) for name in report.by.names),
        *(Column(name, heading) for name, heading in _LIMITED.items()),
    )
    cells = [{**label, **_limits(row)} for label, row in rows]
    if cells:
        print_rows(columns, cells, Format.TABLE, title=_CONFIDENCE)


def _cells(row: MismatchRow) -> dict[str, Cell]:
    return {
        "n_tokens": row.n_tokens,
        "recorded_logprob": row.recorded_logprob,
        "other_logprob": row.other_logprob,
        "log_ratio": row.log_ratio,
        "n_sampled": row.mismatch_kl.n_tokens,
        "k1": row.mismatch_kl.k1,
        "k3": row.mismatch_kl.k3,
        **off_policy_cells(row.off_policy),
    }


def _limits(row: MismatchRow) -> dict[str, Cell]:
    found = {each.name: shown_limits(each.lower, each.upper) for each in row.confidence}
    return {name: found[name] for name in _LIMITED}
