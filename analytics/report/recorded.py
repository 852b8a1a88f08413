"""The tables of a page that shows recorded logprobs beside scored ones."""

from __future__ import annotations

from collections.abc import Mapping

from tokscore.analytics.recorded.report import MismatchReport
from tokscore.analytics.recorded.rows import MismatchRow, row_of
from tokscore.analytics.report.charts import Bar, bar_chart
from tokscore.analytics.report.grouping import PageGrouping
from tokscore.analytics.report.page import Table
from tokscore.analytics.report.summary import GROUP_NAMES
from tokscore.analytics.report.totals import Totals
from tokscore.dataset.choices import RecordedAgainst
from tokscore.dataset.errors import counted

# Numbers of a row by their dotted name, and what the page calls them.
_COLUMNS: Mapping[str, str] = {
    "recorded_logprob": "recorded",
    "scored_logprob": "scored",
    "log_ratio": "scored - recorded",
    "off_policy.mean_abs_log_ratio": "mean |log-ratio|",
    "mismatch_kl.k1": "KL, k1",
    "mismatch_kl.k3": "KL, k3",
    "off_policy.effective_sample_size": "ESS",
    "off_policy.outside_0_9_1_1": "outside 0.9-1.1",
    "off_policy.outside_0_5_2": "outside 0.5-2",
}
_DIGITS = 6


def recorded_facts(report: MismatchReport) -> list[tuple[str, str]]:
    """What is compared, and the estimates with their confidence limits."""
    total = report.total
    limits = {each.name: each for each in total.confidence}
    facts = [
        ("conversations", f"{report.n_conversations:,}"),
        ("left out for an error", f"{len(report.skipped):,}"),
        ("tokens with both logprobs", f"{total.n_tokens:,} of {total.n_tokens + total.n_unrecorded:,}"),
        ("sampled tokens with both", f"{total.mismatch_kl.n_tokens:,}"),
    ]
    numbers = total.flat()
    for title, name, key in (
        ("KL(recorded || scored), k1", "mismatch_kl.k1", "k1"),
        ("KL(recorded || scored), k3", "mismatch_kl.k3", "k3"),
        ("effective sample size", "off_policy.effective_sample_size", "effective_sample_size"),
        ("share of ratios outside 0.9-1.1", "off_policy.outside_0_9_1_1", "outside_0_9_1_1"),
    ):
        found = limits.get(key)
        interval = (
            ""
            if found is None or found.lower is None or found.upper is None
            else f" [{_shown(found.lower)}, {_shown(found.upper)}] with 95 % confidence"
        )
        facts.append((title, f"{_shown(numbers[name])}{interval}"))
    return facts


def recorded_verdict(report: MismatchReport) -> str:
    """The comparison in a sentence."""
    total = report.total
    found = {name: _shown(value) for name, value in total.flat().items()}
    return (
        f"Scored and recorded logprobs differ by {found['off_policy.mean_abs_log_ratio']} nats a token on "
        f"average over {counted(total.n_tokens, 'token')}; KL(recorded || scored) is "
        f"{found['mismatch_kl.k3']} by k3 and {found['mismatch_kl.k1']} by k1."
    )


def recorded_tables(totals: Totals) -> list[Table]:
    """A table with a chart for each grouping, of the sums of `mismatch_columns`."""
    return [_group_table(totals, by) for by in PageGrouping]


def _group_table(totals: Totals, by: PageGrouping) -> Table:
    found = [(label, row_of(None, group, RecordedAgainst.SCORED)) for label, group in totals.groups(by)]
    groups = [(label, row) for label, row in found if row.n_tokens]
    total = row_of(None, totals.total(), RecordedAgainst.SCORED)
    rows = [[label, *_cells(row)] for label, row in (*groups, ("(all)", total))]
    sizes = ((label, row.off_policy.mean_abs_log_ratio) for label, row in groups)
    bars = [Bar(label, 0.0, size) for label, size in sizes if size is not None]
    chart = bar_chart(bars, "mean |scored - recorded|, nats per token") if bars else None
    head = [by.value, "tokens", "sampled", *_COLUMNS.values()]
    is_open = by is PageGrouping.ROLE
    return Table(GROUP_NAMES[by], f"By {by.value}", head, rows, chart, is_open=is_open)


def _cells(row: MismatchRow) -> list[str]:
    numbers = row.flat()
    return [
        f"{row.n_tokens:,}",
        f"{row.mismatch_kl.n_tokens:,}",
        *(_shown(numbers[name]) for name in _COLUMNS),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.{_DIGITS}f}"
