"""Training targets, held against the datasets that they are made of, and trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokscore.analytics.training.export import export
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.rendering import render
from tokscore.scoring import load_scores, score

Make = Callable[..., Any]
CONVERSATIONS = [
    {
        "id": f"c{n}",
        "messages": [
            {"role": "user", "content": f"Say {n}"},
            {"role": "assistant", "content": "one " * n},
            {"role": "user", "content": "More"},
            {"role": "assistant", "content": "two"},
        ],
    }
    for n in range(1, 7)
]


@pytest.fixture(scope="session")
def rendered(tiny_model: Path) -> Dataset:
    return render(CONVERSATIONS, str(tiny_model))


@pytest.fixture(scope="session")
def teacher(rendered: Dataset, tiny_model: Path) -> Dataset:
    return score(rendered, str(tiny_model), top_k=4, engine="transformers")


@pytest.fixture(scope="session")
def student(rendered: Dataset, other_tiny_model: Path) -> Dataset:
    return score(rendered, str(other_tiny_model), top_k=4, engine="transformers")


def test_labels_are_what_was_sampled(rendered: Dataset, tmp_path: Path) -> None:
    counts = export(rendered, tmp_path / "rows.parquet")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    conversations = list(rendered.conversations())
    assert [row["conversation_id"] for row in rows] == [each.row.conversation_id for each in conversations]
    for row, (_, tokens) in zip(rows, conversations, strict=True):
        assert row["input_ids"] == tokens.token_ids.tolist()
        expected = np.where(tokens.sampled_mask == 1, tokens.token_ids, -100)
        assert row["labels"] == expected.tolist()
        assert row["weights"] == (tokens.sampled_mask == 1).astype(float).tolist()
    assert counts.n_targets == sum(int((tokens.sampled_mask == 1).sum()) for _, tokens in conversations)


def test_lists_are_those_of_the_teacher(teacher: Dataset, tmp_path: Path) -> None:
    export(teacher, tmp_path / "rows.parquet", targets="topk")
    ours = pl.read_parquet(tmp_path / "rows.parquet").explode(
        "labels", "weights", "logprobs", "top_ids", "top_logprobs"
    )
    theirs = load_scores(teacher, columns=["is_sampled", "logprob", "top_ids", "top_logprobs"])
    assert len(ours) == len(theirs)
    chosen = theirs["is_sampled"]
    assert (ours["weights"] == 1).to_list() == chosen.to_list()
    for name, stored in (("logprobs", "logprob"), ("top_ids", "top_ids"), ("top_logprobs", "top_logprobs")):
        assert ours.filter(chosen)[name].to_list() == theirs.filter(chosen)[stored].to_list()
    others = ours.filter(~chosen)
    assert others["top_ids"].to_list() == [[-1] * 4] * len(others)


def test_advantages_are_teacher_less_student(teacher: Dataset, student: Dataset, tmp_path: Path) -> None:
    export(teacher, tmp_path / "rows.parquet", targets="advantages", student=student)
    ours = pl.read_parquet(tmp_path / "rows.parquet").explode("weights", "advantages")
    logprobs = [load_scores(side)["logprob"].cast(pl.Float64) for side in (teacher, student)]
    chosen = load_scores(teacher)["is_sampled"]
    expected = (logprobs[0] - logprobs[1]).cast(pl.Float32)
    assert ours.filter(chosen)["advantages"].to_list() == expected.filter(chosen).to_list()
    assert set(ours.filter(~chosen)["advantages"]) == {0.0}


def test_every_conversation_weighs_one(teacher: Dataset, tmp_path: Path) -> None:
    export(teacher, tmp_path / "rows.parquet", weighting="conversations", role="assistant")
    sums = pl.read_parquet(tmp_path / "rows.parquet")["weights"].list.sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-6)


def test_what_is_unknown_is_no_target_and_counted(
    conversation: Make, write_dataset: Make, tmp_path: Path
) -> None:
    known, unknown = conversation("a", seed=1), conversation("b", seed=2)._replace(sampled=-1)
    root = write_dataset([known, unknown], kind=DatasetKind.TOKENS)
    counts = export(root, tmp_path / "rows.parquet")
    assert counts.n_unknown > 0
    rows = {row["conversation_id"]: row for row in pq.read_table(tmp_path / "rows.parquet").to_pylist()}
    assert set(rows["b"]["labels"]) == {-100}
    assert set(rows["a"]["labels"]) != {-100}
    with pytest.raises(InputError, match="has no targets"):
        export(write_dataset([unknown], kind=DatasetKind.TOKENS), tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


def test_a_short_list_is_filled(conversation: Make, write_dataset: Make, tmp_path: Path) -> None:
    root = write_dataset([conversation("a", vocab_size=50)], top_k=60)
    export(root, tmp_path / "rows.parquet", targets="topk")
    lists = pl.read_parquet(tmp_path / "rows.parquet").explode("top_ids")["top_ids"]
    assert set(lists.list.len()) == {60}
    assert lists.list.tail(10).to_list() == [[-1] * 10] * len(lists)


def test_an_infinite_advantage_is_refused(conversation: Make, write_dataset: Make, tmp_path: Path) -> None:
    def ruled_out(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        logprobs = columns["logprob"]
        values = np.full(len(logprobs), -np.inf, np.float32)
        return columns | {"logprob": pa.array(values, mask=logprobs.is_null().to_numpy(zero_copy_only=False))}

    one = conversation("a")
    sides = write_dataset([one]), write_dataset([one], columns=ruled_out)
    with pytest.raises(InputError, match="its advantage is inf, since a model rules the token out"):
        export(sides[0], tmp_path / "rows.parquet", targets="advantages", student=sides[1])
    assert list(tmp_path.glob("*rows.parquet*")) == []


def test_what_does_not_go_together_is_refused(
    teacher: Dataset, rendered: Dataset, student: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "rows.parquet"
    with pytest.raises(UsageError, match="expected both"):
        export(teacher, out, targets="advantages")
    with pytest.raises(UsageError, match="expected both"):
        export(teacher, out, student=student)
    with pytest.raises(InputError, match="expected scores"):
        export(rendered, out, targets="topk")
    out.write_bytes(b"")
    with pytest.raises(UsageError, match="exists already"):
        export(teacher, out)
    with pytest.raises(UsageError, match=r"none.rows\.parquet is in no directory that exists"):
        export(teacher, tmp_path / "none" / "rows.parquet")


def _padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    fill = {"input_ids": 0, "labels": -100, "weights": 0.0, "top_ids": -1, "top_logprobs": -torch.inf}
    return {
        name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=value)
        for name, value in fill.items()
        if name in rows[0]
    }


@pytest.mark.parametrize("targets", ["labels", "topk"])
def test_a_model_learns_from_the_rows(
    teacher: Dataset, student: Dataset, other_tiny_model: Path, tmp_path: Path, targets: str
) -> None:
    """Rows are read by `datasets`, and the first loss is what `score` says of the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    datasets = pytest.importorskip("datasets")
    path = tmp_path / "rows.parquet"
    export(teacher, path, targets=targets)
    rows = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path))
    names = ["input_ids", "labels", "weights", *(["top_ids", "top_logprobs"] if targets == "topk" else [])]
    loader = torch.utils.data.DataLoader(
        rows.select_columns(names).with_format("torch"), batch_size=6, collate_fn=_padded
    )
    model = AutoModelForCausalLM.from_pretrained(other_tiny_model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(4):
        for batch in loader:
            logits = model(batch["input_ids"]).logits[:, :-1].log_softmax(-1)
            weights = batch["weights"][:, 1:]
            if targets == "labels":
                chosen = batch["labels"][:, 1:, None].clamp(min=0)
                each = -logits.gather(-1, chosen)[..., 0]
            else:
                ids, logprobs = batch["top_ids"][:, 1:], batch["top_logprobs"][:, 1:]
                terms = logprobs.exp() * (logprobs - logits.gather(-1, ids.clamp(min=0)))
                each = torch.where(ids >= 0, terms, 0).sum(-1)
            loss = (each * weights).sum() / weights.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    if targets == "labels":
        scored = load_scores(student).filter("is_sampled")["logprob"].cast(pl.Float64).mean()
        assert losses[0] == pytest.approx(-scored, abs=1e-4)
    assert losses[-1] < losses[0]
