"""What is taken from the HTML report: tables, pictures and paper."""

from __future__ import annotations

import base64
import csv
import io
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import HOSTILE

pytestmark = pytest.mark.browser


def downloaded(folder: Path, pattern: str) -> Path:
    """The file once it is whole."""
    deadline = time.monotonic() + 10
    while not (found := [p for p in folder.glob(pattern) if p.stat().st_size]):
        assert time.monotonic() < deadline, f"{pattern} never came"
        time.sleep(0.05)
    return found[0]


def test_csv_holds_every_token_and_every_table(page: Any, report: Path) -> None:
    page.open(report, HOSTILE)
    page.click("tokens-csv")
    path = downloaded(page.downloads, "hostile_*.csv")
    rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))
    assert [int(row["position"]) for row in rows] == list(range(19))
    assert rows[5]["text"] == "</script><img src=x onerror=\"document.title='executed'\">"
    assert all(float(row["gjs_lower"]) <= float(row["gjs_upper"]) for row in rows[1:])
    page.run("document.querySelector('[data-table=\"by-role\"]').click()")
    table = list(csv.reader(downloaded(page.downloads, "by-role.csv").read_text("utf-8").splitlines()))
    assert [row[0] for row in table] == ["role", "assistant", "tool", "user", "(no message)", "(all)"]


def test_charts_are_saved_as_png(page: Any) -> None:
    page.run("document.querySelector('figure').scrollIntoView()")
    page.wait("return !document.querySelector('figure button').disabled")
    page.run("document.querySelector('figure button').click()")
    assert downloaded(page.downloads, "by-role.png").read_bytes().startswith(b"\x89PNG")
    assert page.errors() == []


PIXELS = """
const done = arguments[arguments.length - 1];
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const at = ([x, y]) => [...pen.getImageData(x, y, 1, 1).data].slice(0, 3).join(", ");
  const rows = [...Array(image.height).keys()].map((y) => pen.getImageData(0, y, image.width, 1).data);
  const inked = rows.filter((row) => row.some((value, i) => value !== row[i % 4])).length;
  done([image.width, image.height, arguments[1].map(at), inked]);
};
image.src = `data:image/png;base64,${arguments[0]}`;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_visible_tokens_are_saved_as_png(page: Any, report: Path, theme: str) -> None:
    page.open(report, f"{HOSTILE}&theme={theme}")
    # Two pixels in from the left edge of a token, where its colour shows and its text does not.
    tokens = page.run(
        "const f = document.getElementById('strip').getBoundingClientRect();"
        "return [...document.querySelectorAll('#strip .t')].map((t) => {"
        "  const r = t.getBoundingClientRect(), c = getComputedStyle(t).backgroundColor;"
        "  return [r.left - f.left, (r.top + r.bottom) / 2 - f.top, c];"
        "}).filter(([, , c]) => c.startsWith('rgb('))"
    )
    assert tokens
    width, height = page.run(
        "const s = document.getElementById('strip'); return [s.offsetWidth, s.offsetHeight]"
    )
    page.click("tokens-png")
    path = downloaded(page.downloads, "hostile_*.png")
    picture = path.read_bytes()
    path.unlink()  # the other theme's has the same name
    assert picture.startswith(b"\x89PNG")
    assert page.errors() == []
    page.driver.get("about:blank")
    places = [[round(2 * (12 + x) + 1), round(2 * (12 + 2 * 20 + y))] for x, y, _ in tokens]
    encoded = base64.b64encode(picture).decode()
    found = page.driver.execute_async_script(PIXELS, encoded, places)
    assert found[0] == pytest.approx(2 * (width + 24), abs=2)
    assert found[1] == pytest.approx(2 * (height + 64), abs=2)
    assert found[2] == [colour[len("rgb(") : -1] for _, _, colour in tokens]
    assert found[3] > 40  # rows with text: more than a blank picture's


def test_print_shows_the_conversation_without_controls(page: Any, report: Path) -> None:
    page.open(report, "#c=long&b=0")
    page.command("Emulation.setEmulatedMedia", media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert len(page.texts("#strip .t")) == 5003
    assert page.run(
        "return [...document.querySelectorAll('button, .controls, nav')].every((e) => !e.offsetParent)"
    )
    page.run("dispatchEvent(new Event('afterprint'))")
    page.command("Emulation.setEmulatedMedia", media="")
    assert page.wait("return document.querySelectorAll('#strip .t').length < 5000")
