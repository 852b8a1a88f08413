"""The HTML file as text; how it behaves is tested in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.analytics import Comparison
from tokscore.analytics import diff_report as diff
from tokscore.analytics.report import write_diff_report, write_stats_report
from tokscore.dataset.errors import UsageError


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of script elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.is_open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_open = tag == "script"
        if self.is_open:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.is_open = False

    def handle_data(self, data: str) -> None:
        if self.is_open:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


@pytest.fixture(scope="module")
def page(scores: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    floor = path.with_name("floor.json")
    floor.write_text('{"noise_floor": {"mean": 1e-6, "p99": 2e-5, "max": 4e-5}}')
    size = write_diff_report(*scores, path, alpha=0.3, noise_floor=floor)
    assert (size.n_conversations, size.n_kept, size.size_bytes) == (3, 3, path.stat().st_size)
    return path.read_text(encoding="utf-8")


def test_no_token_becomes_an_element(page: str) -> None:
    found = Elements(page)
    assert "img" not in {tag for tag, _ in found.tags}
    assert not [attributes for _, attributes in found.tags if "onerror" in attributes]


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_loaded(page: str) -> None:
    found = Elements(page)
    loads = [a for _, a in found.tags if "src" in a or (a.get("href") or "#")[0] not in "#d"]
    assert loads == []
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    for attributes, text in found.scripts:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_percentiles_are_limits_of_those_of_every_value(page: str, scores: Any) -> None:
    comparison = Comparison(*scores, alphas=[0.3])
    batches = [batch for _, batch in comparison.map(lambda batch: (None, batch))]
    table = re.findall(r'<table id="percentiles">(.*?)</table>', page, re.DOTALL)[0]
    rows = {
        label: [cell.strip("[])").split(", ") for cell in re.findall(r"<td>(.*?)</td>", cells)]
        for label, cells in re.findall(r">([\w.%]+)</th>((?:<td>.*?</td>)+)", table)
    }
    assert [*rows] == ["50%", "75%", "90%", "95%", "99%", "99.9%", "Maximum"]
    for column, name in enumerate(("kl_teacher_student", "gjs_0.3")):
        for end, side in enumerate(("lower", "upper")):
            values = np.concatenate([batch.measures[f"{name}.{side}"] for batch in batches])
            for share, label in ((0.5, "50%"), (0.9, "90%"), (1.0, "Maximum")):
                expected = np.quantile(values, share, method="inverted_cdf")
                shown = rows[label][column][end]
                assert float(shown.replace("∞", "inf")) == pytest.approx(expected, rel=3e-3, abs=1e-4)


def test_the_role_table_has_the_numbers_of_diff(page: str, scores: Any) -> None:
    report = diff(*scores, alpha=0.3)
    for row in report.groups:
        if row.n_tokens:
            interval = f"[{row.gjs.lower:.4f}, {row.gjs.upper:.4f}]"
            assert re.search(rf">{row.group}</th>.*{re.escape(interval)}", page)
    assert "GJS 0.3" in page
    assert "mean 1e-06, p99 2e-05, max 4e-05 nats" in page


def test_a_limit_keeps_the_most_divergent_and_says_how_many_are_out(
    write_scores: Any, tmp_path: Path
) -> None:
    samples = [(f"c{i}", (("user", tuple(range(16, 50)) * 150),)) for i in range(12)]
    path = tmp_path / "report.html"
    size = write_stats_report(write_scores(tmp_path / "scores", samples), path, max_mb=2.6)
    assert 0 < size.n_kept < 12
    assert path.stat().st_size <= 2_600_000
    assert f"{12 - size.n_kept} others are left out to keep this file below 2.6 MB" in path.read_text("utf-8")


def test_too_small_a_limit_is_refused(scores: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`html_max_mb` is 1; expected at least"):
        write_stats_report(scores.teacher, tmp_path / "report.html", max_mb=1)
