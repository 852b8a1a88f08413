"""The example conversations and real trajectories, from outside, with the real tokenizer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).parents[2]


@pytest.mark.model
@pytest.mark.parametrize("path", ["examples/conversations.jsonl", "tests/data/tau_airline_sample.jsonl"])
def test_every_conversation_renders_as_in_transformers(
    tokscore: Run, teacher_model: Path, tmp_path: Path, path: str
) -> None:
    template = ROOT / "examples" / "chatml_tools.jinja"
    out = tmp_path / "tokens"
    finished = tokscore(
        "render", ROOT / path, "-m", teacher_model, "--template", template, "-o", out, "--verify", "full"
    )
    assert finished.returncode == 0, finished.stderr
    conversations = pl.read_parquet(out / "conversations/*.parquet")
    assert conversations.height == len((ROOT / path).read_text().splitlines())
    assert (out / "errors" / "part-00000.jsonl").read_bytes() == b""
    messages = pl.read_parquet(out / "messages/*.parquet")
    assert messages["unknown_reason"].null_count() == messages.height
    assert (messages.filter(pl.col("role") == "assistant")["n_sampled"] > 0).all()
    assert (messages.filter(pl.col("role") != "assistant")["n_sampled"] == 0).all()
    spans = pl.read_parquet(out / "spans/*.parquet")
    tiled = spans.with_columns(
        before=pl.col("stop").shift(1, fill_value=0).over("conversation_id", order_by="start")
    )
    assert (tiled["start"] == tiled["before"]).all()
    lengths = spans.group_by("conversation_id").agg(pl.col("stop").max())
    joined = lengths.join(conversations, on="conversation_id")
    assert (joined["stop"] == joined["n_tokens"]).all()
