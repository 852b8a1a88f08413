"""The example rollouts are the recorded trajectories with the logprobs that the small model gives them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def _records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _branches(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [branch for record in records for branch in record.get("branches", [record])]


@pytest.mark.model
@pytest.mark.slow
def test_the_rollouts_are_what_the_script_writes(
    teacher_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("make_rollouts", EXAMPLES / "make_rollouts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(teacher_model))
    written = _branches(_records(capsys.readouterr().out))
    stored = _branches(_records((EXAMPLES / "rollouts.jsonl").read_text("utf-8")))
    for found, expected in zip(written, stored, strict=True):
        logprobs, wanted = found.pop("logprobs"), expected.pop("logprobs")
        assert [value is None for value in logprobs] == [value is None for value in wanted]
        sampled = [(a, b) for a, b in zip(logprobs, wanted, strict=True) if a is not None]
        assert [a for a, _ in sampled] == pytest.approx([b for _, b in sampled], abs=2e-4)
        assert found == expected


def test_the_rollouts_are_the_recorded_trajectories() -> None:
    rollouts, recorded = (
        _records((EXAMPLES / f"{name}.jsonl").read_text("utf-8")) for name in ("rollouts", "recorded")
    )
    for branch in _branches(rollouts):
        assert len(branch.pop("logprobs")) == len(branch["completion_token_ids"])
    assert rollouts == recorded
