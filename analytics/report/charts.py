"""Vega-Lite charts of a report, as specifications that the page draws itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tokscore.dataset.errors import UsageError

_WIDTH = "container"
_ROW_HEIGHT = 20


class Bar(NamedTuple):
    """One row of a chart; from `start` to `stop` in nats."""

    label: str
    start: float
    stop: float


class Bin(NamedTuple):
    """One bar of a histogram; from `start` to `stop` in nats."""

    start: float
    stop: float
    n_tokens: int


class Percentile(NamedTuple):
    """A value that a share of the tokens does not exceed, or its limits, in nats."""

    label: str
    lower: float
    upper: float


def check_available() -> None:
    """Raise a `UsageError` unless what draws charts is installed."""
    from importlib.util import find_spec

    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"an HTML report needs {' and '.join(missing)}, not installed here; "
            "expected the extra: pip install 'tokscore[report]'."
        )


@cache
def chart_library() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed in one piece, which sets `window.vegaEmbed`."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def bar_chart(bars: Sequence[Bar], title: str) -> dict[str, Any]:  # Any: JSON values
    """Horizontal bars, one below the other in the given order."""
    import altair as alt

    rows = [{"group": bar.label, "start": bar.start, "stop": bar.stop} for bar in bars]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height={"band": 0.6})
        .encode(
            x=alt.X("start:Q", title=title, axis=alt.Axis(tickCount=6)),
            x2="stop:Q",
            y=alt.Y("group:N", sort=None, title=None, axis=alt.Axis(labelLimit=140)),
            tooltip=[
                alt.Tooltip("group:N"),
                alt.Tooltip("start:Q", format=".4f"),
                alt.Tooltip("stop:Q", format=".4f"),
            ],
        )
        .properties(width=_WIDTH, height=_ROW_HEIGHT * len(rows))
    )
    return _spec(chart)


def histogram(bins: Sequence[Bin], title: str, *, is_log: bool = False) -> dict[str, Any]:  # Any: JSON values
    """Numbers of tokens by value, on a scale that shows single tokens beside millions.

    Args:
        bins: Those with tokens.
        title: Of the values.
        is_log: Whether powers of ten have the same width; bins begin above 0 then.
    """
    import altair as alt

    rows = [{"start": each.start, "stop": each.stop, "tokens": each.n_tokens} for each in bins]
    scale = alt.Scale(type="log") if is_log else alt.Scale(zero=False)
    axis = alt.Axis(format="~g", labelOverlap=True, tickCount=8)
    if is_log:
        axis.values = _powers(min(each.start for each in bins), max(each.stop for each in bins))
    counts = [0, *_powers(1, max(each.n_tokens for each in bins))]
    chart = (
        alt.Chart(alt.Data(values=rows))
        # Otherwise what has a beginning and an end along x lies.
        .mark_bar(orient="vertical")
        .encode(
            x=alt.X("start:Q", title=title, scale=scale, axis=axis),
            x2="stop:Q",
            y=alt.Y(
                "tokens:Q",
                title="tokens",
                scale=alt.Scale(type="symlog"),
                axis=alt.Axis(values=counts, format=",d"),
            ),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("start:Q", format=".3g"),
                alt.Tooltip("stop:Q", format=".3g"),
                alt.Tooltip("tokens:Q", format=","),
            ],
        )
        .properties(width=_WIDTH, height=160)
    )
    return _spec(chart)


def _powers(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [float(f"1e{power}") for power in range(first, last + 1)]


def percentile_chart(points: Sequence[Percentile], title: str) -> dict[str, Any]:  # Any: JSON values
    """Percentiles from left to right, as a line, or the room between their limits."""
    import altair as alt

    rows = [{"share": each.label, "lower": each.lower, "upper": each.upper} for each in points]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("share:N", sort=None, title="share of tokens", axis=alt.Axis(labelAngle=-45)),
        tooltip=[
            alt.Tooltip("share:N"),
            alt.Tooltip("lower:Q", format=".4g"),
            alt.Tooltip("upper:Q", format=".4g"),
        ],
    )
    # Near 0 it is linear: a percentile may be 0.
    scale = alt.Scale(type="symlog", constant=0.01)
    limits = [
        base.mark_line(point=True).encode(y=alt.Y(f"{name}:Q", title=title, scale=scale))
        for name in ("lower", "upper")
    ]
    chart = alt.layer(base.mark_rule(strokeWidth=6, opacity=0.4).encode(y="lower:Q", y2="upper:Q"), *limits)
    return _spec(chart.properties(width=_WIDTH, height=160))


def _spec(chart: Any) -> dict[str, Any]:  # Any: altair's classes, JSON values
    # Nothing of the page may name an address.
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("$schema", None)
    return spec | {"autosize": {"type": "fit-x", "contains": "padding"}}
