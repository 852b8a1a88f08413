"""`tokscore diff` with two models: each is scored at the ids that the other lists, and the limits are narrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tokscore.cli.app import app

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLES = Path(__file__).parents[2] / "examples"
ALPHAS = (0.1, 0.5, 0.9)
# Of GJS over all tokens of the examples, where each model is known at its own list alone.
WIDTH_OF_LISTS = 0.2666 - 0.0812
# Both models are run once for the lists and once for the values, in other batches.
ATOL = 2e-5


@pytest.fixture(scope="module")
def compared(
    teacher_model: Path, student_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, pl.DataFrame]:
    """The report of the example pair, and its tokens with limits and values."""
    folder = tmp_path_factory.mktemp("pair")
    arguments = [
        *("diff", teacher_model, student_model, "--on", EXAMPLES / "conversations.jsonl"),
        *("--template", EXAMPLES / "chatml_tools.jinja", "--engine", "transformers", "--exact"),
        *(each for alpha in ALPHAS for each in ("--alpha", alpha)),
        *("-o", folder / "out", "--format", "json"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKSCORE_CACHE", str(folder / "cache"))
        finished = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert finished.exit_code == 0, finished.output
    tokens, exact = (pl.read_parquet(folder / "out" / f"{name}.parquet") for name in ("tokens", "exact"))
    keys = ["conversation_id", "branch", "position", "token_id"]
    assert exact.select(keys).equals(tokens.select(keys))
    columns = {name: f"exact.{name}" for name in exact.columns if name not in keys}
    return json.loads(finished.stdout), tokens.hstack(exact.select(columns).rename(columns))


@pytest.mark.model
@pytest.mark.slow
def test_every_interval_contains_the_value_at_every_token(compared: tuple[Any, pl.DataFrame]) -> None:
    _, tokens = compared
    names = [
        *("kl_teacher_student", "kl_student_teacher", "total_variation"),
        *(f"{name}_{alpha:g}" for name in ("gjs", "skew_kl") for alpha in ALPHAS),
    ]
    for name in names:
        value = tokens[f"exact.{name}"].to_numpy()
        assert np.isfinite(value).all()
        assert (tokens[f"{name}_lower"].to_numpy() <= value + ATOL).all(), name
        assert (tokens[f"{name}_upper"].fill_null(np.inf).to_numpy() >= value - ATOL).all(), name
    for direction in ("teacher_student", "student_teacher"):
        as_one = tokens[f"kl_tail_as_one_{direction}"].to_numpy()
        assert (as_one <= tokens[f"exact.kl_{direction}"].to_numpy() + ATOL).all()
        assert (as_one >= tokens[f"kl_{direction}_lower"].to_numpy() - ATOL).all()


@pytest.mark.model
@pytest.mark.slow
def test_limits_are_half_as_wide_and_most_mass_is_resolved(compared: tuple[Any, pl.DataFrame]) -> None:
    report, _ = compared
    total = report["total"]
    assert total["gjs_0.5"]["upper"] - total["gjs_0.5"]["lower"] <= WIDTH_OF_LISTS / 2
    assert 1 - total["unresolved_teacher"] >= 0.9
    assert 1 - total["unresolved_student"] >= 0.9
    for direction in ("teacher_student", "student_teacher"):
        exact = report["exact"]["total"][f"kl_{direction}"]
        assert 0.7 * exact <= total[f"kl_tail_as_one_{direction}"] <= exact
