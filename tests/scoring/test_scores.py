"""Scoring from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from tokscore.analytics import diff, stats, topk_gjs
from tokscore.cli.app import app
from tokscore.dataset import schema as tables
from tokscore.rendering import Dataset, InputError, UsageError, load_tokens, render
from tokscore.scoring import load_scores, score

RECORDS = [
    {
        "id": name,
        "messages": [{"role": "user", "content": "Hi " + name}, {"role": "assistant", "content": "Yo!"}],
        "metadata": {"topic": name},
    }
    for name in ("a", "b")
]


@pytest.fixture(scope="module")
def scores(tiny_model: Path) -> Dataset:
    return score(RECORDS, tiny_model, engine="transformers", top_k=3)


def test_records_tokens_and_the_command_give_the_same_scores(
    scores: Dataset, tiny_model: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "convs.jsonl", tmp_path / "scores"
    path.write_text("".join(json.dumps(each) + "\n" for each in RECORDS))
    arguments = ["logprobs", path, "-m", tiny_model, "-o", out, "--engine", "transformers", "--top-k", 3]
    finished = CliRunner().invoke(app, [*map(str, arguments)])
    assert finished.exit_code == 0, finished.output
    expected = pl.read_parquet(out / "scores" / "*.parquet")
    assert expected.columns == tables.SCORES.names
    assert_frame_equal(load_scores(scores), expected)
    tokens = render(RECORDS, tiny_model)
    assert_frame_equal(
        load_scores(score(tokens, tiny_model, engine="transformers", top_k=3)), expected, check_exact=True
    )
    assert_frame_equal(load_tokens(scores), load_tokens(tokens))


def test_rendered_tokens_are_scored_again_where_they_are(tiny_model: Path, tmp_path: Path) -> None:
    """The name of a temporary folder is not in the plan, so that a run can go on from another process."""
    for _ in range(2):
        dataset = score(render(RECORDS, tiny_model), tiny_model, out=tmp_path / "out", engine="transformers")
    assert dataset.root == tmp_path / "out"


def test_settings_reach_rendering_and_engine(tiny_model: Path) -> None:
    told: list[str] = []
    done: list[tuple[int, int]] = []
    dataset = score(
        RECORDS,
        tiny_model,
        engine="transformers",
        temperature=0.5,
        score="sampled",
        add_generation_prompt=True,
        progress=lambda *numbers: done.append(numbers),
        tell=told.append,
    )
    settings = dataset.manifest.settings
    assert (settings["temperature"], settings["score"]) == (0.5, "sampled")
    assert settings["add_generation_prompt"] is True
    frame = load_scores(dataset, columns=["is_sampled", "logprob"])
    assert (frame["logprob"].is_not_null() == frame["is_sampled"]).all()
    assert done[-1] == (frame.height, frame.height)


def test_columns_are_read_lazily(scores: Dataset) -> None:
    lazy = load_scores(scores, columns=["role", "logprob"], lazy=True)
    assert isinstance(lazy, pl.LazyFrame)
    plan = lazy.filter(pl.col("role") == "assistant").explain()
    assert "top_ids" not in plan
    mean = lazy.filter(pl.col("role") == "assistant").select(pl.col("logprob").cast(pl.Float64).mean())
    row = stats(scores).row(by_predicate=pl.col("role") == "assistant", named=True)
    assert mean.collect().item() == pytest.approx(row["mean_logprob"], abs=1e-12)


def test_top_k_columns_are_arrays_for_the_bounds(
    scores: Dataset, tiny_model: Path, other_tiny_model: Path
) -> None:
    """As docs/python.md does it; `diff` knows the realised token too, so that its interval lies inside."""
    other = score(render(RECORDS, tiny_model), other_tiny_model, engine="transformers", top_k=3)
    arrays = []
    for dataset in (scores, other):
        frame = load_scores(dataset, columns=["top_ids", "top_logprobs"]).drop_nulls()
        arrays += [frame[name].list.to_array(3).to_numpy() for name in frame.columns]
    bounds = topk_gjs(*arrays, alpha=0.1)
    found = diff(scores, other, alpha=0.1, by=None).row(0, named=True)
    assert found["n_tokens"] == len(bounds.lower)
    lower, upper = found["gjs_0.1.lower"], found["gjs_0.1.upper"]
    assert np.mean(bounds.lower) <= lower < upper <= np.mean(bounds.upper)
    assert (upper - lower) / np.mean(bounds.upper - bounds.lower) > 0.9


def test_wrong_usage_is_said(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="`engine` is 'vlm'; expected auto, vllm, transformers"):
        score(RECORDS, tiny_model, engine="vlm")
    with pytest.raises(UsageError, match="`max_length` is 0"):
        score(RECORDS, tiny_model, max_length=0)
    with pytest.raises(TypeError, match="verfy"):
        score(RECORDS, tiny_model, verfy="full")  # type: ignore[call-arg]
    tokens = render(RECORDS, tiny_model)
    with pytest.raises(UsageError, match="is rendered already"):
        score(tokens, tiny_model, add_generation_prompt=True)
    with pytest.raises(InputError, match="run tokscore logprobs on it first"):
        load_scores(tokens)
