"""`tokscore diff` with two models: each is scored at the ids that the other lists, and the limits are narrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tokscore.analytics import TopK, topk_limits
from tokscore.cli.app import app

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
# Short ones, 410 tokens in all.
IDS = {"haiku-edit", "sum-of-odds", "two-high-tides"}
ALPHAS = (0.1, 0.5, 0.9)
TOP_K, FEW = 200, 20
# The models run once for the lists and once for the values, in other batches.
ATOL = 2e-5


class Compared(NamedTuple):
    """What diff says of the example pair: its JSON, limits and values of every token, and its cache."""

    report: Any
    tokens: pl.DataFrame
    cache: Path


@pytest.fixture(scope="module")
def compared(teacher_model: Path, student_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("pair")
    lines = (EXAMPLES / "conversations.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "convs.jsonl").write_text("".join(line for line in lines if json.loads(line)["id"] in IDS))
    arguments = [
        *("diff", teacher_model, student_model, "--on", folder / "convs.jsonl"),
        *("--template", EXAMPLES / "chatml_tools.jinja", "--engine", "transformers", "--exact"),
        *("--top-k", TOP_K, *(each for alpha in ALPHAS for each in ("--alpha", alpha))),
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
    together = tokens.hstack(exact.select(list(columns)).rename(columns))
    return Compared(json.loads(finished.stdout), together, folder / "cache")


def short_lists(cache: Path, name: str) -> TopK:
    """The beginnings of a model's lists, as a run that asks for few writes them, and nothing given."""
    [folder] = (
        folder
        for folder in cache.glob("diff/scores-*")
        if (manifest := json.loads((folder / "manifest.json").read_text()))["model"]["name"] == name
        and "at" in manifest["settings"]
    )
    rows = pl.read_parquet(folder / "scores" / "*.parquet").drop_nulls("logprob")
    columns = [np.array(rows[each].to_list())[:, :FEW] for each in ("top_ids", "top_logprobs")]
    return TopK(columns[0].astype(np.int32), columns[1].astype(np.float32))


def test_every_interval_contains_the_value_at_every_token(compared: Compared) -> None:
    tokens = compared.tokens
    names = [
        *("kl_teacher_student", "kl_student_teacher", "total_variation"),
        *("entropy_teacher", "entropy_student"),
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


def test_limits_are_narrow_and_most_mass_is_resolved(
    compared: Compared, teacher_model: Path, student_model: Path
) -> None:
    total = compared.report["total"]
    few = topk_limits(*(short_lists(compared.cache, each.name) for each in (teacher_model, student_model)))
    before = float(np.mean(few["gjs_0.5.upper"] - few["gjs_0.5.lower"]))
    assert total["gjs_0.5"]["upper"] - total["gjs_0.5"]["lower"] <= before / 2
    assert 1 - total["unresolved_teacher"] >= 0.9
    assert 1 - total["unresolved_student"] >= 0.9
