"""The tables above the conversations of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tokscore.analytics.comparison.diff_rows import DiffRow, Interval, row_of
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.comparison.verdict import verdict
from tokscore.analytics.divergence.measures import DiffTable, Measure, measures
from tokscore.analytics.report.charts import Bar, Bin, bar_chart, histogram
from tokscore.analytics.report.grouping import PageGrouping
from tokscore.analytics.report.page import Table
from tokscore.analytics.report.totals import BIN_NATS, N_BINS, Totals, first_bin
from tokscore.dataset.reading import Dataset

GROUP_NAMES = {
    PageGrouping.ROLE: "by-role",
    PageGrouping.SOURCE: "by-source",
    PageGrouping.POSITION: "by-position",
    PageGrouping.MESSAGE: "by-message",
    PageGrouping.ENTROPY: "by-entropy",
}
_SHOWN_HASH = 16


def models_table(datasets: Sequence[Dataset]) -> Table:
    """Who scored what, with which settings; one column a dataset."""
    rows: list[list[str]] = []

    def add(title: str, values: Sequence[object]) -> None:
        rows.append([title, *("-" if value is None else str(value) for value in values)])

    models = [dataset.manifest.model for dataset in datasets]
    for name in ("name", "revision", "sha256", "vocab_size", "dtype", "engine_version"):
        values = [None if model is None else getattr(model, name) for model in models]
        add(f"model {name.replace('_', ' ')}".replace("model name", "model"), [*map(_short, values)])
    tokenizers = [dataset.manifest.tokenizer for dataset in datasets]
    add("tokenizer", [tokenizer.name for tokenizer in tokenizers])
    add("tokenizer revision", [tokenizer.revision for tokenizer in tokenizers])
    add("tokenizer sha256", [_short(tokenizer.sha256) for tokenizer in tokenizers])
    add("template sha256", [_short(tokenizer.template_sha256) for tokenizer in tokenizers])
    for key in dict.fromkeys(key for dataset in datasets for key in dataset.manifest.settings):
        values = [dataset.manifest.settings.get(key) for dataset in datasets]
        if any(value is not None for value in values):
            add(key.replace("_", " "), values)
    add("tokscore", [dataset.manifest.tokscore_version for dataset in datasets])
    head = ["", "teacher", "student"] if len(datasets) == 2 else ["", "dataset"]
    return Table("models", "Models and settings", head, rows, is_facts=True)


def _short(value: object) -> object:
    return f"{value[:_SHOWN_HASH]}…" if isinstance(value, str) and len(value) == 64 else value


def facts_table(rows: Sequence[tuple[str, str]]) -> Table:
    """Coverage and what is left open."""
    return Table("coverage", "Coverage", ["", ""], [list(row) for row in rows], is_facts=True)


def group_tables(
    totals: Totals, *, alpha: float | None = None, opened: PageGrouping | None = PageGrouping.ROLE
) -> list[Table]:
    """A table with a chart for each grouping; of two models, with this weight of the teacher."""
    return [replace(_group_table(totals, by, alpha), is_open=by is opened) for by in PageGrouping]


def _group_table(totals: Totals, by: PageGrouping, alpha: float | None) -> Table:
    groups = totals.groups(by)
    if alpha is None:
        title, head = "mean logprob, nats per token", _SCORED_HEAD
        rows = [[label, *_scored_row(group)] for label, group in (*groups, ("(all)", totals.total()))]
        means = ((label, _mean(group, "logprob")) for label, group in groups)
        bars = [Bar(label, mean, 0.0) for label, mean in means if mean is not None]
    else:
        shown = page_measures(alpha)
        title = f"GJS {alpha:g}, nats: limits of the mean"
        head = [
            "tokens",
            "compared",
            *(measure.heading for measure in shown),
            "unresolved",
            "top-1 agreement",
        ]
        compared = [(label, row_of(None, group, [alpha])) for label, group in groups]
        total = ("(all)", row_of(None, totals.total(), [alpha]))
        rows = [[label, *_compared_row(row, shown)] for label, row in (*compared, total)]
        bars = [
            Bar(label, row.gjs.lower, row.gjs.upper)
            for label, row in compared
            if row.gjs.lower is not None and row.gjs.upper is not None
        ]
    chart = bar_chart(bars, title) if bars else None
    return Table(GROUP_NAMES[by], f"By {by.value}", [by.value, *head], rows, chart)


def diff_verdict(totals: Totals, alpha: float) -> str:
    """The comparison in a sentence."""
    groups = totals.groups(PageGrouping.ROLE)
    return verdict([(f"role {label}", row_of(None, group, [alpha])) for label, group in groups], alpha)


def stats_verdict(totals: Totals) -> str:
    """The scores in a sentence: how likely all tokens are, and which role's are least likely."""
    total = _mean(totals.total(), "logprob")
    if total is None:
        return "No token has a logprob."
    means = [(label, _mean(group, "logprob")) for label, group in totals.groups(PageGrouping.ROLE)]
    known = [(mean, label) for label, mean in means if mean is not None]
    text = f"Mean logprob {total:.4f} nats a token (perplexity {math.exp(min(-total, 700.0)):,.2f})"
    return f"{text}; least likely: role {min(known)[1]}, {min(known)[0]:.4f}." if known else f"{text}."


def page_measures(alpha: float) -> list[Measure]:
    """Measures in the order of the tables of `diff`."""
    return [measure for table in DiffTable for measure in measures([alpha]) if measure.table is table]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(interval: Interval) -> str:
    if interval.lower is None:
        return "∞" if interval.is_infinite else "-"
    return f"[{interval.lower:.4f}, {'∞)' if interval.upper is None else f'{interval.upper:.4f}]'}"


def _compared_row(row: DiffRow, shown: Sequence[Measure]) -> list[str]:
    return [
        f"{row.n_tokens + row.n_unscored:,}",
        f"{row.n_tokens:,}",
        *(
            _interval(row.intervals[measure.name])
            if measure.is_interval
            else _shown(row.points[measure.name])
            for measure in shown
        ),
        _shown(row.unresolved),
        _shown(row.top1_agreement),
    ]


_SCORED_HEAD = ["tokens", "scored", "mean logprob", "perplexity", "rank 1", "entropy"]


def _mean(group: Group, name: str, count: str | None = None) -> float | None:
    n = group.n_tokens if count is None else group.sums.get(count)
    return finite(group.sums[name] / n) if n else None


def _scored_row(group: Group) -> list[str]:
    mean = _mean(group, "logprob")
    perplexity = "-" if mean is None else f"{math.exp(-mean):,.3f}" if mean > -700 else "inf"
    return [
        f"{group.n_rows:,}",
        f"{group.n_tokens:,}",
        _shown(mean),
        perplexity,
        _shown(_mean(group, "n_rank1", "n_ranked")),
        _shown(_mean(group, "entropy", "n_entropy")),
    ]


def histogram_table(totals: Totals, *, name: str) -> Table:
    """How many tokens have which log-ratio or logprob, by the name that the table calls it."""
    first = first_bin(has_student=name != "logprob")
    counts = totals.histogram.tolist()
    rows, bins = [], []
    for i, n in enumerate(counts):
        low, high = first + i * BIN_NATS, first + (i + 1) * BIN_NATS
        label = f"{low:g} to {high:g}"
        if i == 0:
            label = f"below {high:g}"
        elif i == N_BINS - 1:
            label = f"{low:g} and more"
        if n:
            rows.append([label, f"{n:,}"])
            bins.append(Bin(low, high, n))
    chart = histogram(bins, f"{name}, nats") if bins else None
    return Table("histogram", f"Tokens by {name}", [f"{name} (nats)", "tokens"], rows, chart)
