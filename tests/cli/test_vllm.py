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
EXAMPLES = Path(__file__).parents[2] / "examples/conversations.jsonl"
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


@pytest.mark.nightly
def test_exact_values_of_both_engines_are_the_same(
    tokscore: Run, teacher_model: Path, student_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the examples' small pair, token by token; nothing of the hidden states is left."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    conversations = tmp_path / "convs.jsonl"
    lines = EXAMPLES.read_text().splitlines()[:3]
    conversations.write_text("".join(line + "\n" for line in lines))
    sides: list[str | Path] = []
    for model, side in ((teacher_model, "teacher"), (student_model, "student")):
        finished = tokscore(
            "logprobs", conversations, "-m", model, "-o", tmp_path / side, "--engine", "transformers",
            "--top-k", "5", "--score", "sampled",
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        sides += [f"--{side}-model", model]
    frames = []
    for engine in ("vllm", "transformers"):
        out = tmp_path / engine
        finished = tokscore(
            "diff",
            tmp_path / "teacher",
            tmp_path / "student",
            *sides,
            "--exact",
            "--engine",
            engine,
            "-o",
            out,
        )
        assert finished.returncode == 0, finished.stderr
        frames.append(pl.read_parquet(out / "exact.parquet"))
    ours, reference = frames
    assert ours.height > 200
    values = [name for name, kind in ours.schema.items() if kind == pl.Float64]
    assert {"kl_teacher_student", "kl_student_teacher", "gjs_0.5", "entropy_student"} <= {*values}
    assert ours.drop(values).equals(reference.drop(values))
    # log_ratio is the difference of two that are held here.
    for name in sorted({*values} - {"log_ratio"}):
        gaps = np.abs(ours[name].to_numpy() - reference[name].to_numpy())
        # transformers itself has logprobs in float32 up to 2.8e-5 off those in float64 (docs/divergence.md).
        is_of_one_model = name.startswith(("teacher_", "student_", "entropy_"))
        assert gaps.max() <= (2.8e-5 if is_of_one_model else 1e-5), (name, gaps.max())
        assert gaps.mean() <= 2e-6, name
    assert [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".tmp"] == []
