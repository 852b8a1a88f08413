"""Pages about one model, recorded logprobs and plain text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rewriting import rewrite

pytestmark = pytest.mark.browser


def test_a_page_of_one_model_has_its_metrics_alone(
    browser: Any, write_scores: Callable[..., Path], tmp_path: Path
) -> None:
    from tokscore.analytics.report import write_stats_report

    scores = write_scores(tmp_path / "scores", [("a", (("user", (1, 2, 3)),)), ("b", (("user", (4,)),))])
    write_stats_report(scores, tmp_path / "report.html")
    browser.errors()
    browser.open(tmp_path / "report.html", "#c=a&b=0&t=1&pin=1")
    assert browser.texts("#metric option") == ["logprob", "rank", "entropy"]
    assert "student" not in browser.text("#panel")
    browser.press("n")
    assert browser.errors() == []


def test_a_page_shows_recorded_beside_scored_logprobs(
    browser: Any, write_scores: Callable[..., Path], tmp_path: Path
) -> None:
    from tokscore.analytics.report import write_mismatch_report

    scores = write_scores(tmp_path / "scores", [("a", (("user", (1, 2)), ("assistant", (3, 4, 15))))])
    path = scores / "scores/part-00000.parquet"
    table = pq.read_table(path)
    gaps = (None, None, None, 0.5, -0.25, 0.0)
    values = [
        None if gap is None else min(logprob - gap, 0.0)
        for gap, logprob in zip(gaps, table["logprob"].to_pylist(), strict=True)
    ]
    index = table.column_names.index("recorded_logprob")
    rewrite(table.set_column(index, table.schema.field(index), pa.array(values, pa.float32())), path)
    write_mismatch_report(scores, tmp_path / "report.html")
    browser.errors()
    browser.open(tmp_path / "report.html", "#c=a&b=0&t=3&pin=1")
    assert browser.texts("#metric option") == ["recorded", "logprob", "rank", "entropy"]
    cells = [cell.replace("\N{MINUS SIGN}", "-") for cell in browser.texts("#token td")]
    shown = {name: cells[cells.index(name) + 1] for name in ("recorded logprob", "scored less recorded")}
    assert float(shown["recorded logprob"]) == pytest.approx(values[3], rel=1e-3)
    assert float(shown["scored less recorded"]) == pytest.approx(0.5, rel=1e-3)
    assert "the scored is higher" in browser.text("#legend")
    assert browser.errors() == []


def test_a_page_of_plain_text_shows_every_window(browser: Any, tiny_model: Path, tmp_path: Path) -> None:
    from tokscore.analytics.report import write_stats_report
    from tokscore.scoring import score

    (tmp_path / "prose.txt").write_text("Nobody said this to anybody.\n" * 6)
    scores = score(
        tmp_path / "prose.txt",
        tiny_model,
        chunk=64,
        context=33,
        engine="transformers",
        out=tmp_path / "scores",
    )
    write_stats_report(scores, tmp_path / "page.html")
    browser.resize(1280)
    browser.errors()
    browser.open(tmp_path / "page.html")
    browser.run("document.querySelectorAll('figure').forEach((f) => f.scrollIntoView())")
    browser.wait("return document.querySelectorAll('figure svg').length > 0")
    assert len(browser.texts("#strip .t")) == 64
    assert "(no message)" in browser.text("body")
    assert len(browser.texts("#conversations button")) == 2
    assert browser.errors() == []
