"""`tokscore logprobs --engine vllm` from outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RECORDS = [
    {"messages": [{"role": "user", "content": "Name a fish."}, {"role": "assistant", "content": "A tench."}]},
    {"messages": [{"role": "user", "content": "x" * 200}]},
    {"messages": [{"role": "user", "content": "x" * 300}]},
]


def test_both_engines_write_the_same_dataset(tokscore: Run, tiny_model: Path, tmp_path: Path) -> None:
    conversations = tmp_path / "convs.jsonl"
    conversations.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    frames = []
    for engine in ("vllm", "transformers"):
        out = tmp_path / engine
        finished = tokscore(
            "logprobs", conversations, "-m", tiny_model, "-o", out, "--engine", engine, "--top-k", "5",
            "--on-error", "skip", "--format", "json",
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        assert json.loads(finished.stdout)["n_errors"] == 1, "stdout holds the result alone"
        frames.append(pl.read_parquet(out / "scores/*.parquet"))
        [failure] = (out / "errors" / "part-00000.jsonl").read_text().splitlines()
        assert "has 308 tokens; the model's maximum is 256" in json.loads(failure)["reason"]
    ours, reference = frames
    exact = [
        name for name in ours.columns if name not in {"logprob", "rank", "entropy", "top_ids", "top_logprobs"}
    ]
    assert ours.select(exact).equals(reference.select(exact))
    np.testing.assert_allclose(ours["entropy"].to_numpy(), reference["entropy"].to_numpy(), atol=2e-4)
    np.testing.assert_allclose(ours["logprob"].to_numpy(), reference["logprob"].to_numpy(), atol=2e-4)
    np.testing.assert_allclose(
        ours["top_logprobs"].explode(empty_as_null=False).drop_nulls().to_numpy(),
        reference["top_logprobs"].explode(empty_as_null=False).drop_nulls().to_numpy(),
        atol=2e-4,
    )
    differing = tokscore("diff", tmp_path / "vllm", tmp_path / "transformers", "--format", "json")
    assert json.loads(differing.stdout)["total"]["top1_agreement"] > 0.99
