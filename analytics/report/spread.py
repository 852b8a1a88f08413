"""How values are spread over the tokens: percentiles, and a histogram where they are exact."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tokscore.analytics.comparison.compare import ComparedBatch
from tokscore.analytics.divergence.measures import Measure, alpha_name, measures
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.exact.moments import KLD
from tokscore.analytics.exact.parts import ExactParts
from tokscore.analytics.exact.report import ExactReport
from tokscore.analytics.report.charts import Bin, Percentile, histogram, percentile_chart
from tokscore.analytics.report.page import Table
from tokscore.analytics.report.totals import Totals
from tokscore.analytics.statistics.sketches import RELATIVE_ERROR, QuantileSketch

# Bins of KL in nats, four to a power of ten, with what is below and above.
_EDGES = tuple(10.0 ** (step / 4) for step in range(-28, 9))
_SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)


def exact_spread(report: ExactReport) -> list[Table]:
    """The histogram of KL(T||S) over the whole vocabulary, and its percentiles."""
    if not report.total.n_tokens:
        return []
    points = [
        Percentile(figure.label.removesuffix(" KLD"), figure.value, figure.value)
        for figure in reversed(report.summary.kld)
        if figure.name != "mean_kld" and figure.value is not None
    ]
    title = "KL(T||S), nats"
    return [
        _histogram(report.parts, title),
        Table(
            "kld-percentiles",
            "Percentiles of exact KL(T||S)",
            ["share of tokens", title],
            [[point.label, f"{point.lower:.6g}"] for point in points],
            percentile_chart(points, title) if points else None,
        ),
    ]


def _histogram(parts: ExactParts, title: str) -> Table:
    inner, n_infinite = np.zeros(len(_EDGES) + 1, np.int64), 0
    for values in parts.values(KLD):
        known = values[np.isfinite(values)]
        n_infinite += len(values) - len(known)
        inner += np.bincount(np.searchsorted(_EDGES, known, side="right"), minlength=len(inner))
    counts = inner.tolist()
    ends = [_EDGES[0] / 10, *_EDGES, _EDGES[-1] * 10]
    bins = [Bin(low, high, n) for (low, high), n in zip(pairwise(ends), counts, strict=True) if n]
    rows = [[_bin_label(each), f"{each.n_tokens:,}"] for each in bins]
    if n_infinite:
        rows.append(["infinite", f"{n_infinite:,}"])
    chart = histogram(bins, title, is_log=True) if bins else None
    return Table("kld", "Tokens by exact KL(T||S)", [title, "tokens"], rows, chart)


def _bin_label(each: Bin) -> str:
    if each.stop == _EDGES[0]:
        return f"below {each.stop:.3g}"
    if each.start == _EDGES[-1]:
        return f"{each.start:.3g} and more"
    return f"{each.start:.3g} to {each.stop:.3g}"


def spread_measures(alpha: float) -> list[Measure]:
    """Those whose limits `limit_spread` shows."""
    wanted = ("kl_teacher_student", alpha_name("gjs", alpha))
    return [measure for measure in measures([alpha]) if measure.name in wanted]


def limit_columns(batch: ComparedBatch, alpha: float) -> dict[str, FloatArray]:
    """The limits of every compared token by column, infinite ones too."""
    return {name: batch.measures[name] for each in spread_measures(alpha) for name in each.columns}


def limit_spread(totals: Totals, alpha: float) -> list[Table]:
    """Limits of the percentiles that the values over the whole vocabulary have.

    No value is below its lower or above its upper limit, so that neither are the values that a share of the
    tokens does not exceed. How many values are in a bin lists do not tell.
    """
    shown = spread_measures(alpha)
    rows, points = [], []
    for share in _SHARES:
        label = "Maximum" if share == 1 else f"{100 * share:g}%"
        limits = [_limits([totals.sketches[name] for name in each.columns], share) for each in shown]
        rows.append([label, *map(_cell, limits)])
        # Of a KL there often is no upper limit.
        points += [
            Percentile(label, *limit)
            for each, limit in zip(shown, limits, strict=True)
            if each.takes_alpha and limit is not None
        ]
    if not points:
        return []
    gjs = next(each for each in shown if each.takes_alpha)
    head = ["share of tokens", *(measure.heading for measure in shown)]
    return [
        Table(
            "percentiles",
            "Percentiles over the tokens, as limits",
            head,
            rows,
            percentile_chart(points, f"{gjs.heading}, nats"),
        )
    ]


def _limits(sketches: Sequence[QuantileSketch], share: float) -> tuple[float, float] | None:
    lower, upper = (sketch.quantile(share) for sketch in sketches)
    if lower is None or upper is None:
        return None
    return lower * (1 - RELATIVE_ERROR), upper * (1 + RELATIVE_ERROR)


def _cell(limits: tuple[float, float] | None) -> str:
    if limits is None:
        return "-"
    lower, upper = limits
    return f"[{lower:.4f}, {'∞)' if np.isinf(upper) else f'{upper:.4f}]'}"
