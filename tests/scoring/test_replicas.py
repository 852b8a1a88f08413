"""Replicas, each with an engine of its own, score what one process scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokscore.dataset.reading import Dataset
from tokscore.rendering.executors.execution import Execution
from tokscore.rendering.inputs import open_source
from tokscore.scoring import plan_engine
from tokscore.scoring.run import score

FLOATS = ["logprob", "entropy", "top_logprobs"]


@pytest.mark.slow
def test_two_replicas_score_what_one_process_scores(tiny_model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "convs.jsonl"
    records = [
        {
            "id": f"c{i}",
            "messages": [
                {"role": "user", "content": f"{i % 5} {'word ' * (i % 23)}"},
                {"role": "assistant", "content": "yes" * (i % 7)},
            ],
        }
        for i in range(60)
    ]
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    spec = plan_engine(str(tiny_model), engine="transformers", top_k=5)
    one, two = (
        score(
            open_source([str(lines)], str(tiny_model), part_bytes=1_500),
            tmp_path / name,
            spec,
            execution=execution,
        )
        for name, execution in (("one", Execution()), ("two", Execution(replicas=2)))
    )
    assert one.n_parts > 4
    counts = (
        "n_conversations",
        "n_tokens",
        "n_failed",
        "n_scored",
        "n_logical",
        "n_parts",
        "n_parts_missing",
    )
    assert [getattr(two, name) for name in counts] == [getattr(one, name) for name in counts]
    assert two.n_engine_tokens >= two.n_unique > 0
    assert min(two.load_s, two.engine_s) > 0
    names = [sorted(path.name for path in (tmp_path / name / "scores").iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]
    for part in names[0]:
        a, b = (pl.read_parquet(tmp_path / name / "scores" / part) for name in ("one", "two"))
        assert a.drop(FLOATS).equals(b.drop(FLOATS))
        for name in FLOATS:
            flat = [frame[name].explode() if name == "top_logprobs" else frame[name] for frame in (a, b)]
            assert flat[0].is_null().equals(flat[1].is_null())
            np.testing.assert_allclose(*(values.drop_nulls().to_numpy() for values in flat), atol=5e-5)
    for table in ("conversations", "messages", "spans"):
        a, b = (pl.read_parquet(tmp_path / name / table / "*.parquet") for name in ("one", "two"))
        assert a.equals(b)
    assert Dataset(tmp_path / "two").manifest == Dataset(tmp_path / "one").manifest
