"""Vega-Lite charts of a report, as specifications that the page draws itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tokscore.analytics.report.totals import BIN_NATS
from tokscore.dataset.errors import UsageError

_WIDTH = "container"
_ROW_HEIGHT = 20


class Bar(NamedTuple):
    """One row of a chart; from `start` to `stop` in nats."""

    label: str
    start: float
    stop: float


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


def histogram(counts: Sequence[int], first: float, title: str) -> dict[str, Any]:  # Any: JSON values
    """Numbers of tokens by value, on a scale that shows single tokens beside millions."""
    import altair as alt

    rows = [
        {"start": first + i * BIN_NATS, "stop": first + (i + 1) * BIN_NATS, "tokens": n, "zero": 1}
        for i, n in enumerate(counts)
        if n
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("start:Q", title=title, bin=alt.BinParams(binned=True)),
            x2="stop:Q",
            y=alt.Y("tokens:Q", title="tokens", scale=alt.Scale(type="symlog")),
            tooltip=["start:Q", "stop:Q", "tokens:Q"],
        )
        .properties(width=_WIDTH, height=160)
    )
    return _spec(chart)


def _spec(chart: Any) -> dict[str, Any]:  # Any: altair's classes, JSON values
    # Nothing of the page may name an address.
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("$schema", None)
    return spec | {"autosize": {"type": "fit-x", "contains": "padding"}}
