"""The exact run is held against the logprobs that both datasets hold."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")
from tests.analytics.exact.pairs import Pair, score_pair
from tests.rewriting import rewrite
from tests.scoring.tiny_models import make
from tokscore.analytics.exact.report import exact_report
from tokscore.analytics.exact.stored import StoredLogprobs
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.scoring.engines.batching import Batching


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A plain model and one with LongRoPE, over sequences on both sides of its switch of positions."""
    folder = tmp_path_factory.mktemp("longrope")
    rng = np.random.default_rng(8)
    records = [
        {"id": f"s{i}", "prompt_token_ids": ids[:1].tolist(), "completion_token_ids": ids[1:].tolist()}
        for i, ids in enumerate(rng.integers(0, 256, n) for n in (200, 40, 40, 60, 64, 65))
    ]
    lines = folder / "sequences.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    return score_pair(folder, lines, make("llama", folder), make("longrope", folder))


def independent_kl(pair: Pair) -> float:
    """Mean KL per token from both models in float64, one sequence at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    models = [
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
        for model in (pair.teacher_model, pair.student_model)
    ]
    total = n = 0.0
    rows = pl.read_parquet(pair.teacher / "scores/*.parquet")
    for ids in rows.group_by("conversation_id").agg("token_id")["token_id"].to_list():
        with torch.inference_mode():
            p, q = (
                torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0, :-1], -1)
                for model in models
            )
        total += float((p.exp() * (p - q)).sum())
        n += len(ids) - 1
    return total / n


def test_models_with_other_rules_for_positions_have_the_value_of_each_alone(
    longrope: Pair, tmp_path: Path
) -> None:
    report = exact_report(longrope.run(tmp_path))
    assert report.total.n_tokens == 463
    assert report.total.values["kl_teacher_student"] == pytest.approx(independent_kl(longrope), abs=1e-5)
    for gap in (report.teacher_stored, report.student_stored):
        assert gap.n_tokens == 463
        assert gap.mean is not None
        assert gap.mean <= gap.max < 2e-4


def test_a_run_with_the_positions_of_another_sequence_is_refused(
    longrope: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batching, "within", lambda self, _other: self)
    with pytest.raises(InputError) as refused:
        exact_report(longrope.run(tmp_path))
    found = re.search(
        r"student: conversation 's\d', position \d+: the student's logprob is (-[\d.]+) there and (-[\d.]+) "
        r"over the whole vocabulary\. Of (\d+) tokens of this conversation, (\d+) differ by more than 0\.0002 "
        r"nats, and all by ([\d.]+) on average",
        str(refused.value),
    )
    assert found is not None, refused.value
    stored, exact, n_tokens, n_beyond, mean = map(float, found.groups())
    assert abs(stored - exact) > 0.1
    assert n_beyond > n_tokens / 2
    assert mean > 0.1
    assert not list(tmp_path.glob("*.parquet"))


def changed(pair: Pair, folder: Path, side: str, column: str, row: int, value: float) -> Pair:
    """The pair with one value of one dataset replaced."""
    shutil.copytree(getattr(pair, side), folder)
    path = next((folder / "scores").glob("*.parquet"))
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[row] += value
    index = table.column_names.index(column)
    field = table.schema.field(index)
    rewrite(table.set_column(index, field, pa.array(values, field.type)), path)
    return pair._replace(**{side: folder})


@pytest.mark.parametrize("side", ["teacher", "student"])
def test_one_logprob_that_the_model_does_not_give_is_refused(pair: Pair, tmp_path: Path, side: str) -> None:
    wrong = changed(pair, tmp_path / "wrong", side, "logprob", 30, 0.01)
    place = pl.read_parquet(wrong.teacher / "scores/*.parquet").row(30, named=True)
    with pytest.raises(InputError) as refused:
        exact_report(wrong.run(tmp_path / "exact"))
    name = (
        f"{tmp_path / 'wrong'}: conversation '{place['conversation_id']}', position {place['position']}: the "
    )
    assert str(refused.value).startswith(f"{name}{side}'s logprob is ")
    assert "1 differ by more than 0.0002 nats" in str(refused.value)


def test_parts_that_are_there_are_held_against_the_datasets_too(pair: Pair, tmp_path: Path) -> None:
    exact_report(pair.run(tmp_path / "exact"))
    wrong = changed(pair, tmp_path / "wrong", "student", "logprob", 9, -0.5)
    with pytest.raises(InputError, match="the student's logprob is"):
        exact_report(wrong.run(tmp_path / "exact"))


def held(
    dataset: Dataset,
    gaps: np.ndarray,
    *,
    dtype: str = "float32",
    temperature: float = 1.0,
    floor: Path | None = None,
) -> bool:
    """Whether logprobs of -2 that differ by so much pass."""
    import msgspec

    model = msgspec.structs.replace(dataset.manifest.model, dtype=dtype)
    settings = dataset.manifest.settings | {"temperature": temperature}
    dataset.manifest = msgspec.structs.replace(dataset.manifest, model=model, settings=settings)
    stored = np.full(len(gaps), -2.0)
    logprobs = StoredLogprobs(dataset, "teacher", floor)
    place = next(dataset.places())
    try:
        logprobs.hold(place, np.arange(len(gaps), dtype=np.int32), stored, stored - gaps)
    except InputError:
        return False
    return True


@pytest.fixture
def dataset(pair: Pair) -> Dataset:
    return Dataset(pair.teacher)


@pytest.mark.parametrize(
    ("dtype", "gap", "n", "passes"),
    [
        ("float32", 1.5e-4, 1, True),
        ("float32", 2.5e-4, 1, False),
        ("float32", 1.5e-4, 1_000, False),
        ("bfloat16", 1.5, 1, True),
        ("bfloat16", 1.5, 100, False),
        ("bfloat16", 0.05, 10_000, True),
        ("bfloat16", 0.2, 10_000, False),
        ("float16", 0.05, 1_000, False),
        ("bfloat16", math.inf, 100, False),
    ],
)
def test_noise_of_the_dtype_passes_and_more_does_not(
    dataset: Dataset, dtype: str, gap: float, n: int, passes: bool
) -> None:
    assert held(dataset, np.full(n, gap), dtype=dtype) is passes


def test_single_tokens_stray_in_16_bits_but_not_in_float32(dataset: Dataset) -> None:
    gaps = np.zeros(1_000)
    gaps[500] = 4.0
    assert held(dataset, gaps, dtype="bfloat16")
    assert not held(dataset, gaps)
    gaps[501] = 4.0
    assert not held(dataset, gaps, dtype="bfloat16")


def test_a_low_temperature_scales_the_noise(dataset: Dataset) -> None:
    gaps = np.full(10, 0.005)
    assert held(dataset, gaps, temperature=0.01)
    assert not held(dataset, gaps, temperature=0.1)


def test_a_measured_engine_may_differ_by_twice_what_was_measured(dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "floor.json"
    floor = {"noise_floor": {"mean": 0, "p99": 0, "max": 0}, "against_reference": {"mean": 0.01, "max": 0.1}}
    path.write_text(json.dumps(floor))
    assert held(dataset, np.full(100, 0.015), floor=path)
    assert not held(dataset, np.full(100, 0.05), floor=path)
    assert not held(dataset, np.full(1, 0.21), floor=path)


def test_small_differences_of_all_tokens_add_up(dataset: Dataset) -> None:
    """Too small for a conversation alone, too many for chance."""
    logprobs, place = StoredLogprobs(dataset, "teacher"), next(dataset.places())
    stored = np.full(10, -2.0)

    def hold(n_conversations: int) -> None:
        for _ in range(n_conversations):
            logprobs.hold(place, np.arange(10, dtype=np.int32), stored, stored - 6e-5)

    hold(1)
    with pytest.raises(InputError, match="the teacher's logprob is"):
        hold(1_000)
