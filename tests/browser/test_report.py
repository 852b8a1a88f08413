"""The HTML report in a real browser, from file:// and without a network."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import HOSTILE

pytestmark = pytest.mark.browser

OPEN_ALL = "document.querySelectorAll('details').forEach((each) => (each.open = true))"
SELECTED = "const t = document.querySelector('#strip .selected'); return t ? Number(t.dataset.i) : -1"
# Boxes of text that run into each other, or out of the window.
OVERLAPS = """
const inside = (e) => e.closest('.wide, #strip, #conversations, #panel, .chart, option, noscript');
const boxes = [...document.querySelectorAll('h1, h2, h3, p, button, label, select, table, figure, #strip, #panel')]
  .filter((e) => !e.parentElement.closest('label') && e.offsetParent && !(inside(e) && !e.matches('#strip, #panel')))
  .map((e) => [e, e.getBoundingClientRect()]).filter(([, r]) => r.width && r.height);
const found = boxes.filter(([, r]) => r.left < -1 || r.right > innerWidth + 1).map(([e]) => 'out: ' + e.outerHTML.slice(0, 90));
boxes.forEach(([a, r], i) => boxes.slice(i + 1).forEach(([b, s]) => {
  const over = Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1;
  if (over && !a.contains(b) && !b.contains(a)) found.push(a.outerHTML.slice(0, 90) + ' over ' + b.outerHTML.slice(0, 90));
}));
const cut = [...document.querySelectorAll('button, select, h1, h2, h3, label, #legend')].filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && !e.closest('#conversations') && getComputedStyle(e).display !== 'inline');
return found.concat(cut.map((e) => 'cut: ' + e.outerHTML.slice(0, 90)));
"""

OPENED = "return [...document.querySelectorAll('#summary table')].filter((e) => e.checkVisibility()).map((e) => e.id)"
# Titles of axes that the edge of their chart cuts.
CUT_TITLES = """
return [...document.querySelectorAll('figure svg .role-axis-title text')].filter((e) => {
  const [mine, chart] = [e, e.closest('svg')].map((each) => each.getBoundingClientRect());
  return mine.left < chart.left - 1 || mine.right > chart.right + 1 || mine.bottom > chart.bottom + 1;
}).map((e) => e.textContent);
"""


def test_it_opens_from_a_file_without_network_or_console_messages(browser: Any, report: Path) -> None:
    browser.errors(), browser.requests()
    browser.open(report)
    browser.run(OPEN_ALL)
    browser.run("document.querySelectorAll('figure').forEach((f) => f.scrollIntoView())")
    browser.wait("return document.querySelectorAll('figure svg').length > 0")
    assert browser.errors() == []
    assert {url.split(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}
    assert len([url for url in browser.requests() if url.startswith("file")]) <= 1


def test_every_chart_is_drawn_and_has_a_table(page: Any) -> None:
    page.run(OPEN_ALL)
    n_charts = page.run("return document.querySelectorAll('figure').length")
    assert n_charts == 7
    for i in range(n_charts):
        page.run("document.querySelectorAll('figure')[arguments[0]].scrollIntoView()", i)
        page.wait(f"return document.querySelectorAll('figure')[{i}].querySelector('svg path')")
        assert page.run(
            "return document.querySelectorAll('figure')[arguments[0]].closest('.part').querySelectorAll('td').length",
            i,
        )
    assert page.errors() == []


def test_hostile_texts_are_shown_as_text_and_nothing_runs(page: Any, report: Path) -> None:
    page.open(report, HOSTILE)
    tokens = page.texts("#strip .t")
    assert "</script><img·src=x·onerror=\"document.title='executed'\">" in tokens
    assert "\\u{200d}" in "".join(tokens)
    assert "\\u{202e}" in "".join(tokens)
    assert "\\xe4\\xbd" in tokens
    assert "\\u{1b}[31m" in tokens
    assert "→a" in tokens
    assert "↵" in tokens
    assert f"{'x' * 60}… +9,940" in tokens
    assert page.run("return document.title") != "executed"
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.errors() == []


def test_the_order_of_tokens_survives_right_to_left_text(page: Any, report: Path) -> None:
    page.open(report, HOSTILE)
    script = "return [...document.querySelectorAll('#strip .t')].map((t) => [t.getBoundingClientRect().top, t.getBoundingClientRect().left])"
    places = page.run(script)
    for (top, left), (next_top, next_left) in pairwise(places):
        assert next_top > top + 5 or next_left > left


def test_a_10k_character_token_is_whole_in_the_panel(page: Any, report: Path) -> None:
    page.open(report, HOSTILE + "&t=11&pin=1")
    assert page.text("#panel .token-text") == "x" * 10_000
    assert page.run("const p = document.getElementById('panel'); return p.scrollWidth <= p.clientWidth + 1")


def test_the_list_is_sorted_by_any_metric(page: Any) -> None:
    rows = page.run("return JSON.parse(document.getElementById('report').textContent).conversations")
    for metric in ("logprob", "rank", "entropy", "gjs", "delta"):
        page.choose("sort", metric)
        expected = sorted(range(len(rows)), key=lambda i: (-rows[i]["means"][metric], i))
        shown = page.run(
            "return [...document.querySelectorAll('#conversations button')].map((b) => Number(b.dataset.c))"
        )
        assert shown == expected[:50]
        assert page.state()["s"] == metric
    page.click("ascending")
    first = page.run("return Number(document.querySelector('#conversations button').dataset.c)")
    assert rows[first]["means"]["delta"] == min(row["means"]["delta"] for row in rows)
    page.click("next-page")
    assert len(page.texts("#conversations button")) == len(rows) - 50


def test_search_narrows_the_list(page: Any) -> None:
    page.press("short-1", "search")
    assert len(page.texts("#conversations button")) == 11
    assert page.text("#page").startswith("11 found")
    assert page.state()["q"] == "short-1"
    page.press("x", "search")
    assert page.texts("#conversations button") == []


def test_the_metric_switch_colours_by_the_values(page: Any, report: Path) -> None:
    page.open(report, "#c=short-7&b=0")
    limits = page.run("return JSON.parse(document.getElementById('report').textContent).limits")
    sign = {"logprob": -1}
    for metric in ("logprob", "rank", "entropy", "gjs", "delta"):
        page.choose("metric", metric)
        assert page.state()["m"] == metric
        classes = page.run("return [...document.querySelectorAll('#strip .t')].map((t) => t.className)")
        assert len(classes) == 6
        for i in range(1, 6):
            page.run("document.querySelector(`#strip [data-i='${arguments[0]}']`).click()", i)
            shown = dict(
                page.run(
                    "return [...document.querySelector('#panel table').rows].map((r) => [r.cells[0].textContent, r.cells[1].textContent])"
                )
            )
            value = float(
                shown["GJS" if metric == "gjs" else metric].strip("[").split(",")[0].replace("−", "-")
            )
            salience = abs(value) if metric == "delta" else sign.get(metric, 1) * value
            level = sum(salience > limit for limit in limits[metric])
            assert f"l{level}" in classes[i].split()
            assert ("negative" in classes[i]) == (metric == "delta" and value < 0 and level > 0)


def test_n_and_p_go_from_divergent_token_to_divergent_token(page: Any, report: Path) -> None:
    page.open(report, "#c=long&b=0&m=gjs")
    seen = []
    for _ in range(4):
        page.press("n")
        seen.append(page.run(SELECTED))
        assert page.run("return /l[34]/.test(document.querySelector('#strip .selected').className)")
    assert seen == sorted(set(seen))
    page.press("p")
    assert page.run(SELECTED) == seen[2]
    page.click("next-token")
    assert page.run(SELECTED) == seen[3]
    assert page.state()["t"] == str(seen[3])


def test_a_click_pins_a_token_until_escape(page: Any, report: Path) -> None:
    page.open(report, "#c=short-3&b=0")
    page.run("document.querySelector('#strip [data-i=\"2\"]').click()")
    assert "Pinned: id 2, position 2, message 0, user, content" in page.text("#panel")
    hover = "document.querySelector('#strip [data-i=\"4\"]').dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    page.run(hover)
    assert "position 2" in page.text("#panel")
    page.press("\ue00c")
    page.run(hover)
    assert "position 4" in page.text("#panel")
    assert "Pinned" not in page.text("#panel")


def test_the_panel_lists_both_models_and_what_is_unknown(page: Any, report: Path) -> None:
    page.open(report, "#c=long&b=0&t=40&pin=1")
    table = page.run(
        "return [...document.querySelectorAll('#panel table')[1].rows].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert table[0] == ["likely here", "teacher", "student"]
    assert sum("(this token)" in row[0] for row in table) == 1
    assert any("unknown, at most" in cell for row in table for cell in row)
    for side in (1, 2):
        shares = [
            float(row[side].split(" %")[0])
            for row in table[1:]
            if row[side].endswith("%") and "most" not in row[side]
        ]
        assert sum(shares) == pytest.approx(100, abs=0.5)


def test_keys_alone_reach_everything(page: Any, report: Path) -> None:
    page.open(report, "#c=short-5&b=0&q=short-5")
    page.run("document.getElementById('strip').focus()")
    for key, expected in (("\ue014", 0), ("\ue014", 1), ("\ue012", 0)):
        page.press(key, "strip")
        assert page.run(SELECTED) == expected
    page.run(
        "window.reached = []; addEventListener('focusin', ({ target: e }) =>"
        "window.reached.push(e.id || e.dataset.table || e.dataset.c || e.textContent))"
    )
    page.driver.find_element("css selector", "header a").send_keys("\ue004" * 60)
    names = set(page.run("return window.reached"))
    assert {
        "theme",
        "search",
        "sort",
        "ascending",
        "metric",
        "next-token",
        "find",
        "strip",
        "panel",
        "tokens-csv",
        "by-role",
    } <= names


def test_the_address_brings_back_what_was_seen(page: Any, report: Path) -> None:
    page.open(report, "#c=short-9&b=0&m=entropy&q=short&s=tokens&o=asc&t=3&pin=1&theme=dark")
    assert page.text("#conversation-heading").startswith("short-9 (")
    assert page.run("return ['metric', 'search', 'sort'].map((id) => document.getElementById(id).value)") == [
        "entropy",
        "short",
        "tokens",
    ]
    assert page.run(SELECTED) == 3
    assert "Pinned" in page.text("#panel")
    state = page.state()
    page.driver.refresh()
    page.wait("return document.querySelectorAll('#strip .t').length > 0")
    assert page.state() == state


def test_find_goes_to_a_text_across_tokens(page: Any, report: Path) -> None:
    page.open(report, "#c=short-2&b=0")
    page.press("HELLO WORLD\n", "find")
    assert page.run(SELECTED) == 1
    page.press("nowhere\n", "find")
    assert "is not in this conversation" in page.text("#status")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_follow_the_system_and_the_button(browser: Any, report: Path, scheme: str) -> None:
    browser.command(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    browser.open(report)
    dark = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 64)"
    assert browser.run(dark) is (scheme == "dark")
    browser.click("theme")
    assert browser.run(dark) is (scheme == "light")
    assert browser.state()["theme"] == ("light" if scheme == "dark" else "dark")
    browser.command("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize(
    ("name", "fragment"), [("report", f"{HOSTILE}&q=short-1&t=5&pin=1"), ("exact_page", "#t=5&pin=1")]
)
@pytest.mark.slow
def test_nothing_overlaps_or_is_cut_and_axe_finds_nothing_serious(
    browser: Any,
    assets: Path,
    request: pytest.FixtureRequest,
    name: str,
    fragment: str,
    width: int,
    theme: str,
) -> None:
    browser.resize(width)
    browser.open(request.getfixturevalue(name), f"{fragment}&theme={theme}")
    browser.run(OPEN_ALL)
    for i in range(browser.run("return document.querySelectorAll('figure').length")):
        browser.run("document.querySelectorAll('figure')[arguments[0]].scrollIntoView()", i)
        browser.wait(f"return document.querySelectorAll('figure')[{i}].querySelector('svg path')")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(OVERLAPS) == []
    assert browser.run(CUT_TITLES) == []
    axe = (assets / "axe" / "axe.min.js").read_text(encoding="utf-8")
    browser.command("Runtime.evaluate", expression=axe)
    script = "const done = arguments[arguments.length - 1]; axe.run().then((r) => done(r.violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html.slice(0, 120) + n.failureSummary).slice(0, 3)])))"
    serious = [v for v in browser.driver.execute_async_script(script) if v[0] in ("serious", "critical")]
    assert serious == []
    if folder := os.environ.get("TOKSCORE_SCREENSHOTS"):
        Path(folder).mkdir(exist_ok=True)
        shot = browser.command("Page.captureScreenshot", captureBeyondViewport=True)
        (Path(folder) / f"{name}-{width}-{theme}.png").write_bytes(base64.b64decode(shot["data"]))


def test_what_is_exact_stands_first(browser: Any, exact_page: Path) -> None:
    browser.resize(1280)
    browser.open(exact_page)
    assert browser.run("return document.getElementById('conversations').getBoundingClientRect().top") < 800
    assert browser.run(OPENED) == ["exact"]
    assert "Over the whole vocabulary KL(T||S) is " in browser.text(".verdict")
    head = browser.texts("#exact th")
    assert head[:3] == ["role", "tokens", "KL(T||S)"]
    more = browser.text(".more > summary")
    assert "tokens by exact KL(T||S), percentiles of exact KL(T||S), by role" in more


def test_bars_of_a_histogram_stand_on_zero(browser: Any, exact_page: Path) -> None:
    browser.resize(1280)
    browser.open(exact_page)
    browser.run(OPEN_ALL)
    browser.run("document.querySelector('figure[data-name=kld]').scrollIntoView()")
    bars = "[...document.querySelectorAll('figure[data-name=kld] svg .mark-rect path')]"
    browser.wait(f"return {bars}.length > 0")
    boxes = browser.run(f"return {bars}.map((e) => e.getBoundingClientRect()).map((r) => [r.top, r.bottom])")
    assert max(bottom for _, bottom in boxes) - min(bottom for _, bottom in boxes) < 1
    assert all(bottom - top > 5 for top, bottom in boxes)


def test_the_first_screen_has_the_verdict_the_roles_and_the_first_conversation(page: Any) -> None:
    top = page.run("return document.getElementById('conversations').getBoundingClientRect().top")
    assert top < 800
    assert page.text(".verdict").startswith("Most apart: role ")
    assert page.run(OPENED) == ["by-role"]
    if folder := os.environ.get("TOKSCORE_SCREENSHOTS"):
        Path(folder).mkdir(exist_ok=True)
        for width in (1280, 390):
            page.resize(width)
            shot = page.command("Page.captureScreenshot")
            (Path(folder) / f"first-{width}.png").write_bytes(base64.b64decode(shot["data"]))


def test_indentation_begins_the_line_that_it_indents(
    browser: Any, write_scores: Callable[..., Path], tmp_path: Path
) -> None:
    from tokscore.analytics.report import write_stats_report

    texts = [b"<s>", b"if:", b"\n    ", b"x", b"\n\n", b" y"]
    scores = write_scores(tmp_path / "scores", [("a", (("user", (1, 2, 3, 4, 5)),))], texts=texts)
    write_stats_report(scores, tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    pieces = "return [...document.querySelectorAll('#strip .t')].map((e) => [e.textContent, e.dataset.i ?? e.dataset.of, Math.round(e.getBoundingClientRect().top)])"
    found = browser.run(pieces)
    assert [(text, i) for text, i, _ in found[1:]] == [
        ("if:", "1"),
        ("↵", "2"),
        ("····", "2"),
        ("x", "3"),
        ("↵↵", "4"),
        ("·y", "5"),
    ]
    tops = [top for _, _, top in found[1:]]
    assert tops[0] == tops[1] < tops[2] == tops[3] == tops[4] < tops[5]


def test_the_document_stays_small_while_a_long_conversation_scrolls(page: Any, report: Path) -> None:
    page.open(report, "#c=long&b=0")
    most, last = 0, -1
    for _ in range(400):
        page.run("const s = document.getElementById('strip'); s.scrollTop += 0.9 * s.clientHeight")
        page.run("return new Promise(requestAnimationFrame)")
        most = max(most, page.run("return document.querySelectorAll('*').length"))
        top = page.run("return document.getElementById('strip').scrollTop")
        if top == last:
            break
        last = top
    assert most < 5000
    shown = page.run("return [...document.querySelectorAll('#strip .t')].map((t) => Number(t.dataset.i))")
    assert shown[-1] == 5002
    assert shown == list(range(shown[0], 5003))
