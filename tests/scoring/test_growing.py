"""Scores grow with the tokens that they were made from."""

from __future__ import annotations

import json
from pathlib import Path

from tokscore.dataset.reading import Dataset
from tokscore.dataset.verification.verify import verify
from tokscore.rendering.run import render
from tokscore.scoring.scores import score


def write(path: Path, ids: str) -> Path:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    path.write_text("".join(json.dumps({"id": each, "messages": messages}) + "\n" for each in ids))
    return path


def scored(tokens: Path, model: Path, out: Path) -> Dataset:
    return score(tokens, model, out=out, engine="transformers", dtype="float32", top_k=3)


def test_only_the_tokens_that_were_added_are_scored(tiny_model: Path, tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{name}.jsonl", name) for name in ("ab", "c", "d")]
    tokens, out = tmp_path / "tokens", tmp_path / "scores"
    kept: dict[Path, bytes] = {}
    for n in (1, 2, 3):
        render(inputs[:n], tiny_model, out=tokens)
        found = scored(tokens, tiny_model, out)
        assert len(found.manifest.parts) == n
        assert {path: path.read_bytes() for path in kept} == kept
        kept = {path: path.read_bytes() for path in out.rglob("part-*")}
    assert [each.row.conversation_id for each in found.conversations()] == [*"abcd"]
    assert verify(out).is_whole
    # The history of the tokens is no part of what is scored.
    render(inputs, tiny_model, out=tmp_path / "anew" / "tokens")
    assert len(scored(tmp_path / "anew" / "tokens", tiny_model, out).manifest.parts) == len(inputs)
