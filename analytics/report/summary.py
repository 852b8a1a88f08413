"""The tables above the conversations of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tokscore.analytics.report.charts import Bar, bar_chart, histogram
from tokscore.analytics.report.grouping import Grouping
from tokscore.analytics.report.page import Table
from tokscore.analytics.report.totals import BIN_NATS, N_BINS, Totals
from tokscore.dataset.reading import Dataset

_NAMES = {
    Grouping.ROLE: "by-role",
    Grouping.SOURCE: "by-source",
    Grouping.POSITION: "by-position",
    Grouping.MESSAGE: "by-message",
    Grouping.ENTROPY: "by-entropy",
}
_SHOWN_HASH = 16
Sums = Mapping[str, float]


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


def group_tables(totals: Totals, *, has_student: bool, alpha: float = 0.5) -> list[Table]:
    """A table with a chart for each grouping."""
    return [_group_table(totals, by, has_student=has_student, alpha=alpha) for by in Grouping]


def _group_table(totals: Totals, by: Grouping, *, has_student: bool, alpha: float) -> Table:
    groups = totals.rows(by)
    if has_student:
        head = ["tokens", "compared", "logprob T", "logprob S", "T - S", "KL(T||S)", "KL(S||T)"]
        head += [f"GJS {alpha:g}", "unresolved", "top-1 agreement"]
        row, title = _compared_row, f"GJS {alpha:g}, nats per token: lower to upper limit of the mean"
        bars = [
            Bar(label, s["gjs_lower"] / s["n_counted"], s["gjs_upper"] / s["n_counted"])
            for label, s in groups
            if s["n_counted"]
        ]
    else:
        head = ["tokens", "scored", "mean logprob", "perplexity", "rank 1", "entropy"]
        row, title = _scored_row, "mean logprob, nats per token"
        bars = [
            Bar(label, mean, 0.0)
            for label, s in groups
            if s["n_counted"] and math.isfinite(mean := s["logprob"] / s["n_counted"])
        ]
    rows = [[label, *row(sums)] for label, sums in groups] + [["(all)", *row(totals.total())]]
    return Table(
        _NAMES[by],
        f"By {by.value}",
        [by.value, *head],
        rows,
        bar_chart(bars, title) if bars else None,
    )


def _mean(sums: Sums, name: str, count: str = "n_counted") -> str:
    if not sums[count]:
        return "-"
    return f"{sums[name] / sums[count]:.4f}"


def _interval(sums: Sums, name: str) -> str:
    if not sums["n_counted"]:
        return "-"
    lower = _mean(sums, f"{name}_lower")
    if sums[f"{name}_n_unbounded"]:
        return f"[{lower}, ∞)"
    return f"[{lower}, {_mean(sums, f'{name}_upper')}]"


def _compared_row(sums: Sums) -> list[str]:
    return [
        f"{int(sums['n_tokens']):,}",
        f"{int(sums['n_counted']):,}",
        _mean(sums, "logprob"),
        _mean(sums, "student_logprob"),
        _mean(sums, "delta"),
        _interval(sums, "kl_teacher_student"),
        _interval(sums, "kl_student_teacher"),
        _interval(sums, "gjs"),
        _mean(sums, "unresolved"),
        _mean(sums, "n_agreeing", "n_top1"),
    ]


def _scored_row(sums: Sums) -> list[str]:
    mean = sums["logprob"] / sums["n_counted"] if sums["n_counted"] else math.nan
    perplexity = "-" if math.isnan(mean) else f"{math.exp(-mean):,.3f}" if mean > -700 else "inf"
    return [
        f"{int(sums['n_tokens']):,}",
        f"{int(sums['n_counted']):,}",
        _mean(sums, "logprob"),
        perplexity,
        _mean(sums, "n_rank1", "n_ranked"),
        _mean(sums, "entropy", "n_entropy"),
    ]


def histogram_table(totals: Totals, *, has_student: bool) -> Table:
    """How many tokens have which log-ratio, or logprob."""
    first = -N_BINS * BIN_NATS / (2 if has_student else 1)
    name = "log-ratio T - S" if has_student else "logprob"
    counts = totals.histogram.tolist()
    rows = []
    for i, n in enumerate(counts):
        low, high = first + i * BIN_NATS, first + (i + 1) * BIN_NATS
        label = f"{low:g} to {high:g}"
        if i == 0:
            label = f"below {high:g}"
        elif i == N_BINS - 1:
            label = f"{low:g} and more"
        if n:
            rows.append([label, f"{n:,}"])
    chart = histogram(counts, first, f"{name}, nats") if rows else None
    return Table("histogram", f"Tokens by {name}", [f"{name} (nats)", "tokens"], rows, chart)
