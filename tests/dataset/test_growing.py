"""Inputs are added to a dataset by the command that wrote it, with one more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.errors import UsageError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.outputs.merge import merge
from tokscore.dataset.reading import Dataset
from tokscore.dataset.verification.repair import repair
from tokscore.dataset.verification.verify import Fault, verify
from tokscore.rendering.run import render


def write(path: Path, ids: str) -> Path:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    path.write_text("".join(json.dumps({"id": each, "messages": messages}) + "\n" for each in ids))
    return path


def ids_of(dataset: Dataset) -> list[str]:
    return [each.row.conversation_id for each in dataset.conversations()]


def test_the_parts_of_a_new_input_follow_the_old_ones(tiny_model: Path, tmp_path: Path) -> None:
    first, second, third = (write(tmp_path / f"{name}.jsonl", name) for name in ("ab", "cda", "e"))
    out = tmp_path / "out"
    render(first, tiny_model, out=out)
    before = {path: path.read_bytes() for path in out.rglob("part-*")}
    render([first, second], tiny_model, out=out)
    grown = render([first, second, third], tiny_model, out=out)
    assert {path: path.read_bytes() for path in before} == before
    assert ids_of(grown) == ["a", "b", "c", "d", "a#2", "e"]
    assert [plan.n_parts for plan in grown.manifest.earlier_plans or []] == [1, 2]
    assert verify(out).is_whole
    whole = render([first, second, third], tiny_model, out=tmp_path / "whole")
    assert ids_of(whole) == ids_of(grown)
    assert whole.manifest.plan_hash == grown.manifest.plan_hash


def test_an_old_part_that_is_made_again_belongs_to_the_dataset(tiny_model: Path, tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{name}.jsonl", name) for name in ("ab", "c")]
    out = tmp_path / "out"
    render(inputs[0], tiny_model, out=out)
    render(inputs, tiny_model, out=out)
    assert repair(out, [Fault(0, "for the test")]) == [0]
    assert ids_of(render(inputs, tiny_model, out=out)) == ["a", "b", "c"]
    assert verify(out).is_whole


@pytest.mark.parametrize("what", ["settings", "order", "less"])
def test_nothing_is_added_where_more_differs(tiny_model: Path, tmp_path: Path, what: str) -> None:
    inputs = [write(tmp_path / f"{name}.jsonl", name) for name in ("ab", "c")]
    out = tmp_path / "out"
    render(inputs if what == "less" else inputs[0], tiny_model, out=out)
    before = read_manifest(out)
    given = {"settings": inputs, "order": inputs[::-1], "less": inputs[:1]}[what]
    with pytest.raises(UsageError, match="holds another run"):
        render(given, tiny_model, out=out, add_generation_prompt=what == "settings")
    assert read_manifest(out) == before


def test_outputs_that_grew_otherwise_are_merged(tiny_model: Path, tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{name}.jsonl", name) for name in ("ab", "c")]
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    render(inputs[0], tiny_model, out=grown)
    render(inputs, tiny_model, out=grown)
    render(inputs, tiny_model, out=whole)
    (grown / "tokens" / part_name(1)).unlink()
    (whole / "tokens" / part_name(0)).unlink()
    assert merge([whole, grown], tmp_path / "merged").n_missing == 0
    assert verify(tmp_path / "merged").is_whole
