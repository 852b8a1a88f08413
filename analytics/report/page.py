"""The HTML page: one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template

from tokscore.analytics.report.packing import script_json

_SCRIPTS = ("decode.js", "metrics.js", "strip.js", "picture.js", "panel.js", "charts.js", "main.js")
_JSON = '<script type="application/json"{attributes}>{text}</script>\n'


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text; the first column names the row.

    Attributes:
        name: For its file when exported; letters and dashes.
        title: Heading above it.
        head: Titles of the columns.
        rows: Cells as printed.
        chart: Vega-Lite specification to stand above it, None without a chart.
        is_facts: Whether cells are text that wraps, not numbers.
        is_open: Whether it is seen without a click.
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: Mapping[str, object] | None = None
    is_facts: bool = False
    is_open: bool = False

    def html(self) -> str:
        """The chart, the table and its export."""
        head = "".join(f'<th scope="col">{escape(title)}</th>' for title in self.head)
        body = "\n".join(
            "<tr>"
            + f'<th scope="row" class="text">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        chart = "" if self.chart is None else self._figure(self.chart)
        name, title = escape(self.name), escape(self.title)
        classes = f"part{' facts' if self.is_facts else ''}"
        heading = f'<h3 id="{name}-heading">{title}</h3>'
        return (
            (f'<div class="{classes} open">\n{heading}\n<div class="beside">\n' if self.is_open else "")
            + (f'<details class="{classes}">\n<summary>{heading}</summary>\n' if not self.is_open else "")
            + f"{chart}"
            f'<div class="wide" tabindex="0" role="region" aria-labelledby="{name}-heading">\n'
            f'<table id="{name}">\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>\n"
            + ("</div>\n" if self.is_open else "")
            + f'<p><button type="button" data-table="{name}" aria-label="CSV of {title}">CSV</button></p>\n'
            + ("</div>\n" if self.is_open else "</details>\n")
        )

    def _figure(self, chart: Mapping[str, object]) -> str:
        name, title = escape(self.name), escape(self.title)
        return (
            f'<figure data-name="{name}"><div class="chart" role="img" aria-label="Chart of the table below: '
            f'{title}"></div>\n'
            + _JSON.format(attributes="", text=script_json(chart)).rstrip()
            + f'<button type="button" disabled aria-label="PNG of {title}">PNG</button></figure>\n'
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that stands in a report.

    Attributes:
        title: Of the page.
        tables: The summary, in order.
        metrics: Names of those that colour tokens; the page opens with the first.
        limits: Saliences at which levels begin, by metric; None where there is no value.
        has_student: Whether it compares two models.
        chart_library: JavaScript that sets `window.vegaEmbed`.
        notes: Sentences below the summary.
        verdict: What it says, in a sentence or two.
        kept: A sentence about which conversations are in it.
        conversations: Rows of the list: JSON objects.
        packed: Their tokens, as JSON text, in the same order.
        texts: Text of every id that occurs.
        named: Ids whose text is a name, not what a model reads.
    """

    title: str
    tables: Sequence[Table]
    metrics: Sequence[str]
    limits: Mapping[str, Sequence[float | None]]
    has_student: bool
    chart_library: str
    notes: Sequence[str] = ()
    verdict: str = ""
    kept: str = ""
    conversations: Sequence[Mapping[str, object]] = ()
    packed: Sequence[str] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    named: Sequence[int] = ()

    def html(self) -> str:
        """The whole page."""
        assets = files("tokscore.analytics.report").joinpath("assets")
        code = "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
        code = f'"use strict";\n(() => {{\n{code}}})();\n'
        library = self.chart_library.replace("</script", "<\\/script")
        shown, folded = (
            [table for table in self.tables if table.is_open is wanted] for wanted in (True, False)
        )
        summary = f'<p class="verdict">{escape(self.verdict)}</p>\n'
        summary += "".join(table.html() for table in shown)
        titles = ", ".join(table.title[:1].lower() + table.title[1:] for table in folded)
        summary += f'<details class="more">\n<summary>More: {escape(titles)}</summary>\n<div class="parts">\n'
        summary += "".join(table.html() for table in folded)
        summary += "".join(f'<p class="small">{escape(note)}</p>\n' for note in self.notes)
        summary += "</div>\n</details>\n"
        return Template(assets.joinpath("page.html").read_text(encoding="utf-8")).substitute(
            policy=_policy([code, library]),
            title=escape(self.title),
            style=assets.joinpath("page.css").read_text(encoding="utf-8"),
            summary=summary,
            kept=escape(self.kept),
            scripts="".join(self._scripts(code, library)),
        )

    def _scripts(self, code: str, library: str) -> Iterable[str]:
        report = {
            "metrics": self.metrics,
            "limits": self.limits,
            "hasStudent": self.has_student,
            "conversations": self.conversations,
        }
        vocabulary = {"ids": list(self.texts), "texts": list(self.texts.values()), "named": self.named}
        for name, value in (("report", report), ("vocabulary", vocabulary)):
            yield _JSON.format(attributes=f' id="{name}"', text=script_json(value))
        for index, text in enumerate(self.packed):
            yield _JSON.format(attributes=f' id="c{index}"', text=text)
        yield f'<script type="text/plain" id="vega">{library}</script>\n'
        yield f"<script>{code}</script>"


def _policy(scripts: Iterable[str]) -> str:
    """Only these scripts run, and nothing is loaded; Vega compiles its expressions, hence unsafe-eval."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
