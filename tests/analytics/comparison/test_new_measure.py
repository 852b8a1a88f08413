"""A measure added from outside, as one row, comes out of everything that prints measures."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[3]

# From columns that are there: the Jeffreys divergence. From the lists, as one with a kernel of its own: how
# many of the listed ids both models list. A point, with an alpha.
ROWS = """
import numpy as np
from tokscore.analytics import MEASURES, Measure


def jeffreys(tokens, alpha):
    ends = ("lower", "upper")
    return tuple(tokens[f"kl_teacher_student.{end}"] + tokens[f"kl_student_teacher.{end}"] for end in ends)


def shared_ids(tokens, alpha):
    lists = tokens.teacher, tokens.student
    found = []
    for token in range(len(lists[0].starts)):
        mine, theirs = (
            set(side.ids[side.starts[token] : side.starts[token] + side.lengths[token]].tolist()) for side in lists
        )
        found.append(alpha * len(mine & theirs) / max(len(mine | theirs), 1))
    return np.array(found)


MEASURES.append(
    Measure("jeffreys", "Jeffreys", "KL in both directions, added", "nats", jeffreys, is_exact=True)
)
MEASURES.append(
    Measure(
        "shared_ids", "shared ids", "Share of listed ids that both list", "probability", shared_ids,
        largest=1.0, is_interval=False, is_gap=False, takes_alpha=True,
    )
)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python with the module of new rows imported."""
    (tmp_path / "more_measures.py").write_text(ROWS)

    def runs(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT / 'docs')!r}]; import more_measures; {code}"
        command = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return runs


CLI = "from tokscore.cli.main import main; main()"


@pytest.fixture
def pair(write_scores: Any, tmp_path: Path) -> list[Path]:
    """Lists that hold the whole vocabulary."""
    samples = [(f"c{i}", (("user", tuple(range(1, 4 + i))), ("assistant", (7, 8 + i)))) for i in range(4)]
    return [write_scores(tmp_path / name, samples, noise=i / 2, top_k=1000) for i, name in enumerate("ts")]


@pytest.mark.slow
def test_a_new_row_comes_out_of_every_form_of_diff(run: Any, pair: list[Path], tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    found = run(
        CLI, "diff", *pair, "--format", "json", "-o", out, "--html", page, "--fail-if", "jeffreys.lower > 0"
    )
    assert found.returncode == 1, found.stderr
    assert "failed: jeffreys.lower > 0 (it is" in found.stderr
    total = json.loads(found.stdout)["total"]
    for end in ("lower", "upper"):
        both = total["kl_teacher_student"][end] + total["kl_student_teacher"][end]
        assert total["jeffreys"][end] == pytest.approx(both, rel=1e-12)
    assert total["confidence"]["jeffreys"]["lower"] >= 0
    assert "shared_ids_0.5" not in total["confidence"]

    tokens = pq.read_table(out / "tokens.parquet")
    lower = tokens["jeffreys_lower"].to_numpy()
    np.testing.assert_allclose(
        lower, tokens["kl_teacher_student_lower"].to_numpy() + tokens["kl_student_teacher_lower"].to_numpy()
    )
    # Lists of the whole vocabulary hold the same ids.
    assert tokens["shared_ids_0.5"].to_pylist() == [0.5] * len(tokens)
    field = tokens.schema.field("jeffreys_lower")
    assert field.metadata == {b"description": b"KL in both directions, added: lower limit.", b"unit": b"nats"}
    assert total["jeffreys"]["lower"] == pytest.approx(lower.mean())
    groups = pq.read_table(out / "groups.parquet")
    assert {"jeffreys.lower", "jeffreys.upper", "shared_ids_0.5"} <= set(groups.column_names)

    shown = f"[{total['jeffreys']['lower']:.4f}, {total['jeffreys']['upper']:.4f}]"
    html = page.read_text(encoding="utf-8")
    assert '<th scope="col">Jeffreys</th>' in html
    assert shown in html
    table = run(CLI, "diff", *pair, "--details", "--wide").stdout
    assert "Jeffreys" in table
    assert "shared ids 0.5" in table
    assert shown in table
    rows = list(csv.DictReader(io.StringIO(run(CLI, "diff", *pair, "--format", "csv").stdout)))
    assert float(rows[-1]["jeffreys.lower"]) == pytest.approx(total["jeffreys"]["lower"])
    page_of_columns = run("from column_page import columns_page; print(columns_page())").stdout
    assert "| `jeffreys.lower` | float | nats | yes | KL in both directions, added." in page_of_columns
    assert (
        "| `shared_ids_A` | float64 | probability |  | Share of listed ids that both list. |"
        in page_of_columns
    )


def test_a_new_row_has_exact_values(run: Any) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, json; from tokscore.scoring.exact.divergences import exact_divergences; "
        "from tokscore.analytics.exact.columns import exact_values, exact_schema; "
        "found = exact_divergences(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([1])); "
        "assert 'jeffreys' in exact_schema([0.5]).names; "
        "print(json.dumps({name: column.tolist() for name, column in exact_values([found], [0.5]).items()}))"
    )
    found = run(code)
    values = json.loads(found.stdout)
    assert values["jeffreys"][0] == pytest.approx(
        values["kl_teacher_student"][0] + values["kl_student_teacher"][0]
    )
    p, q = 1 / (1 + math.e), math.e**2 / (1 + math.e**2)
    assert values["jeffreys"][0] == pytest.approx((p - q) * (math.log(p / q) - math.log((1 - p) / (1 - q))))


def test_a_value_out_of_the_range_of_its_row_is_refused(run: Any, pair: list[Path]) -> None:
    wrong = (
        "from dataclasses import replace; rows = more_measures.MEASURES; "
        "rows[-1] = replace(rows[-1], least=2.0, largest=3.0); "
    )
    found = run(wrong + CLI, "diff", *pair)
    assert found.returncode == 3
    assert "conversation 'c0', position 1: shared_ids_0.5 is 0.5; expected 2 to 3" in found.stderr
