"""Intervals against the exact value over the whole vocabulary, on the real pair of models."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import entr, rel_entr
from typer.testing import CliRunner

from tokscore.analytics import TopK, topk_limits
from tokscore.analytics import diff_report as diff
from tokscore.analytics.comparison.confidence import confidence_of_means
from tokscore.analytics.comparison.reduction import Clusters
from tokscore.analytics.exact import exact_report, write_exact
from tokscore.cli.app import app
from tokscore.rendering import ConversationError, open_source
from tokscore.scoring import TokenSequence, load_engine, plan_engine
from tokscore.scoring.run import score

torch = pytest.importorskip("torch")
from tokscore.scoring.exact import ExactTokens, ModelPair, exact_divergences  # noqa: E402 (needs torch)

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES = Path(__file__).parents[2] / "examples"
TOP_K = 20
ALPHA = 0.5


@pytest.fixture(scope="module")
def sequences(teacher_model: Path) -> list[np.ndarray[Any, Any]]:
    source = open_source(
        [str(EXAMPLES / "conversations.jsonl")],
        str(teacher_model),
        template=EXAMPLES / "chatml_tools.jinja",
    )
    rendered = [item for part in source.parts for item in source.read(part)]
    assert not any(isinstance(item, ConversationError) for item in rendered)
    return [item.tokens.token_ids for item in rendered]


def scored_with_logits(
    model: Path, sequences: list[np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """The engine's scores of one sequence after the other, with the logits that it took them from."""
    from tokscore.scoring.engines import transformers as module

    engine = load_engine("transformers", str(model), top_k=TOP_K)
    seen: list[Any] = []
    score_logits = module.score_logits

    def recorded(logits: Any, *arguments: Any) -> Any:
        seen.append(logits.clone())
        return score_logits(logits, *arguments)

    for key, token_ids in enumerate(sequences):
        with monkeypatch.context() as patch:
            patch.setattr(module, "score_logits", recorded)
            [(_, scores)] = engine.score([TokenSequence(key, token_ids)])
        yield scores, torch.cat(seen)
        seen.clear()
    engine.close()


def full_softmax(teacher: Any, student: Any) -> np.ndarray[Any, Any]:
    """KL(T||S), KL(S||T), GJS, TV, both entropies and skew KL in float64 from two blocks of logits.

    Shape [7, rows].
    """
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (teacher, student))
    m = torch.logaddexp(p + np.log(ALPHA), q + np.log1p(-ALPHA))
    kl_teacher_student = (p.exp() * (p - q)).sum(-1)
    kl_student_teacher = (q.exp() * (q - p)).sum(-1)
    skew_kl = (p.exp() * (p - m)).sum(-1)
    gjs = ALPHA * skew_kl + (1 - ALPHA) * (q.exp() * (q - m)).sum(-1)
    total_variation = (p.exp() - q.exp()).abs().sum(-1) / 2
    entropies = (-(logprobs.exp() * logprobs).sum(-1) for logprobs in (p, q))
    values = (kl_teacher_student, kl_student_teacher, gjs, total_variation, *entropies, skew_kl)
    return np.stack([value.numpy() for value in values])


def stacked(values: ExactTokens) -> np.ndarray[Any, Any]:
    """In the order of `full_softmax`, without skew KL."""
    return np.stack([*values[2:4], values.gjs[0], *values[4:7]])


@pytest.mark.parametrize(
    "n_tokens", [50, pytest.param(250, marks=pytest.mark.slow)], ids=lambda n: f"first {n} tokens"
)
def test_every_interval_of_the_examples_contains_the_exact_value(
    teacher_model: Path,
    student_model: Path,
    sequences: list[np.ndarray[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    n_tokens: int,
) -> None:
    """Of the beginning of every conversation, over the 49,152 ids of real distributions."""
    beginnings = [token_ids[:n_tokens] for token_ids in sequences]
    n_checked = 0
    widths = []
    teachers = scored_with_logits(teacher_model, beginnings, monkeypatch)
    students = scored_with_logits(student_model, beginnings, monkeypatch)
    for token_ids, (teacher, teacher_logits), (student, student_logits) in zip(
        beginnings, teachers, students, strict=True
    ):
        lists = [TopK(side.top_ids, side.top_logprobs, side.logprobs) for side in (teacher, student)]
        limits = topk_limits(*lists, alphas=[ALPHA], token_ids=token_ids[1:])
        intervals = (
            limits.of("kl_teacher_student"),
            limits.of("kl_student_teacher"),
            limits.of("gjs", ALPHA),
            limits.of("total_variation"),
            limits.of("entropy_teacher"),
            limits.of("entropy_student"),
            limits.of("skew_kl", ALPHA),
        )
        values = full_softmax(teacher_logits, student_logits)
        for value, bounds in zip(values, intervals, strict=True):
            assert (bounds.lower <= value).all()
            assert (value <= bounds.upper).all()
        gjs = limits.of("gjs", ALPHA)
        assert (gjs.lower > 0).mean() > 0.9
        assert np.isfinite(gjs.upper).all()
        widths.append(gjs.upper - gjs.lower)
        n_checked += len(token_ids) - 1
    assert n_checked >= 15 * (n_tokens - 1)
    assert 0 < np.concatenate(widths).mean() < np.log(2)


def test_the_pair_equals_a_full_softmax_of_its_models(teacher_model: Path, student_model: Path) -> None:
    rng = np.random.default_rng(5)
    sequences = [
        TokenSequence(key, rng.integers(0, 49_152, n).astype(np.int32)) for key, n in enumerate((9, 5))
    ]
    plans = [
        plan_engine(str(model), engine="transformers", top_k=0) for model in (teacher_model, student_model)
    ]
    pair = ModelPair(*plans, alphas=(ALPHA,))
    found = dict(pair.measure(sequences))
    with torch.inference_mode():
        logits = [[torch.cat(list(rows)) for rows in engine.logits(sequences)] for engine in pair.engines]
    pair.close()
    for sequence, mine, theirs in zip(sequences, *logits, strict=True):
        values = found[sequence.key]
        np.testing.assert_allclose(stacked(values), full_softmax(mine, theirs)[:6], atol=1e-9)
        logprobs = torch.log_softmax(mine.double(), -1).numpy()[np.arange(len(mine)), sequence.targets()]
        np.testing.assert_allclose(values.teacher_logprob, logprobs, atol=1e-9)


def test_the_exact_values_are_those_of_scipy() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = [(torch.randn(9, 400, generator=generator) * 4).double() for _ in range(2)]
    p, q = (torch.softmax(each, -1).numpy() for each in logits)
    values = exact_divergences(*logits, torch.zeros(9, dtype=torch.int64), alphas=(0.5,))
    expected = {
        "kl_teacher_student": rel_entr(p, q).sum(axis=1),
        "kl_student_teacher": rel_entr(q, p).sum(axis=1),
        "entropy_teacher": entr(p).sum(axis=1),
        "entropy_student": entr(q).sum(axis=1),
    }
    for name, each in expected.items():
        np.testing.assert_allclose(getattr(values, name), each, atol=1e-12)
    np.testing.assert_allclose(values.gjs[0], jensenshannon(p, q, axis=1) ** 2, atol=1e-12)
    lists = [TopK(np.tile(np.arange(400), (9, 1)), np.log(side), vocab_size=400) for side in (p, q)]
    limits = topk_limits(*lists)
    for end in ("lower", "upper"):
        np.testing.assert_allclose(
            getattr(limits.of("kl_teacher_student"), end), expected["kl_teacher_student"], atol=1e-9
        )
        np.testing.assert_allclose(
            getattr(limits.of("gjs", 0.5), end), jensenshannon(p, q, axis=1) ** 2, atol=1e-9
        )


def test_equal_logits_differ_by_exactly_nothing() -> None:
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(1)) * 9
    values = exact_divergences(logits, logits, torch.zeros(7, dtype=torch.int64), alphas=(0.1, 0.3, 0.77))
    for column in (*values[2:5], values.gjs):
        assert not column.any()


def test_ids_that_one_model_rules_out() -> None:
    teacher = torch.tensor([[0.0, 0.0, -np.inf], [0.0, -1e4, -900.0]])
    student = torch.tensor([[0.0, -np.inf], [-1e4, 0.0]])
    values = exact_divergences(teacher, student, torch.tensor([0, 1]), alphas=(0.5,))
    np.testing.assert_allclose(values.kl_teacher_student, [np.inf, 1e4])
    np.testing.assert_allclose(values.kl_student_teacher, [np.log(2), 1e4])
    np.testing.assert_allclose(values.total_variation, [0.5, 1])
    np.testing.assert_allclose(
        values.gjs[0], [0.25 * np.log(2 / 3) + 0.25 * np.log(2) + 0.5 * np.log(4 / 3), np.log(2)]
    )


@pytest.mark.parametrize("by", ["role", "message_index,is_sampled", "metadata.topic"])
def test_means_of_the_table_lie_in_the_intervals(tiny_pair: tuple[Path, Path, Path], by: str) -> None:
    teacher, student, table = tiny_pair
    report = exact_report(table, teacher, student, by=by)
    rows = pl.read_parquet(table)
    assert report.total.n_tokens == len(rows) == pq.read_table(teacher / "scores").num_rows - 2
    for name in ("kl_teacher_student", "gjs_0.1", "entropy_student"):
        assert report.total.values[name] == pytest.approx(rows[name].mean(), abs=1e-12)
    assert sum(group.n_tokens for group in report.groups) == len(rows)
    if by == "metadata.topic":
        first = rows.filter(pl.col("conversation_id") == "a")
        assert [group.group for group in report.groups] == ["greeting", None]
        assert report.groups[0].values["gjs_0.9"] == pytest.approx(first["gjs_0.9"].mean(), abs=1e-12)
    if by == "role":
        total = {each.name: each for each in report.total.confidence}
        sums = rows.group_by("conversation_id", maintain_order=True).agg(
            pl.len().cast(pl.Int64), pl.col("total_variation").sum()
        )
        columns = {"total_variation": sums["total_variation"].to_numpy()}
        clusters = Clusters([("a", 0), ("b", 0)], columns, sums["len"].to_numpy())
        [expected] = confidence_of_means(clusters, [0.1], 999)
        assert total["total_variation"][1:3] == pytest.approx(expected[1:3], rel=1e-12)
        assert total["gjs_0.1"].is_rough
        assert total.keys() == {
            "kl_teacher_student",
            "kl_student_teacher",
            "total_variation",
            "gjs_0.1",
            "gjs_0.9",
        }
        for group, bounds in zip(report.groups, diff(teacher, student, alpha=0.1).groups, strict=True):
            value = group.values["gjs_0.1"]
            assert group.group == bounds.group
            assert value is not None
            assert bounds.gjs.lower is not None
            assert bounds.gjs.upper is not None
            assert bounds.gjs.lower <= value <= bounds.gjs.upper


@pytest.mark.parametrize(("column", "value"), [("token_id", 5), ("logprob", math.nan)])
def test_the_exact_values_leave_out_what_the_comparison_skipped(
    tiny_pair: tuple[Path, Path, Path],
    tiny_model: Path,
    other_tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    value: float,
) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path / "cache"))
    teacher, student, whole = tiny_pair
    shutil.copytree(student, tmp_path / "student")
    path = tmp_path / "student/scores/part-00000.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[table["conversation_id"].to_pylist().index("b") + 3] = value
    index = table.column_names.index(column)
    field = table.schema.field(index)
    pq.write_table(table.set_column(index, field, pa.array(values, field.type)), path)
    arguments = ["diff", teacher, tmp_path / "student", "--exact", "--on-error", "skip", "--format", "json"]
    models = ["--teacher-model", tiny_model, "--student-model", other_tiny_model]
    finished = CliRunner().invoke(app, [str(each) for each in (*arguments, *models)])
    assert finished.exit_code == 0, finished.output
    report = json.loads(finished.stdout)
    rows = pl.read_parquet(whole).filter(pl.col("conversation_id") == "a")
    assert [each["conversation_id"] for each in report["skipped"]] == ["b"]
    assert report["exact"]["total"]["n_tokens"] == report["total"]["n_tokens"] == rows.height
    assert report["exact"]["total"]["entropy_student"] == pytest.approx(rows["entropy_student"].mean())


def test_the_same_alpha_twice_is_one(
    tiny_pair: tuple[Path, Path, Path],
    tiny_model: Path,
    other_tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    arguments = ["diff", *tiny_pair[:2], "--exact", "--alpha", "0.3", "--alpha", "0.3", "--format", "json"]
    models = ["--teacher-model", tiny_model, "--student-model", other_tiny_model]
    finished = CliRunner().invoke(app, [str(each) for each in (*arguments, *models)])
    assert finished.exit_code == 0, finished.output
    names = [name for name in json.loads(finished.stdout)["exact"]["total"] if name.startswith("gjs")]
    assert names == ["gjs_0.3"]
    table = CliRunner().invoke(app, [str(each) for each in (*arguments[:-2], *models)]).stdout
    (header,) = [line for line in table.partition("Exact, 95 %")[2].splitlines() if "conversations" in line][
        1:
    ]
    assert header.split() == ["role", "conversations", "KL(T||S)", "KL(S||T)", "TV", "GJS", "0.3"]


@pytest.fixture(scope="module")
def tiny_pair(
    tiny_model: Path, other_tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Path]:
    """Two score datasets, and the exact table of their models."""
    folder = tmp_path_factory.mktemp("pair")
    records = [
        {"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]}
        for name, text in (("a", "Hello!"), ("b", "Good morning."))
    ]
    records[0]["metadata"] = {"topic": "greeting"}
    (folder / "convs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    plans = [
        plan_engine(str(model), engine="transformers", top_k=5) for model in (tiny_model, other_tiny_model)
    ]
    for model, plan, name in zip((tiny_model, other_tiny_model), plans, ("teacher", "student"), strict=True):
        score(open_source(str(folder / "convs.jsonl"), str(model)), folder / name, plan)
    pair = ModelPair(*plans, alphas=(0.1, 0.9))
    table = folder / "exact.parquet"
    write_exact(table, folder / "teacher", folder / "student", pair.measure, alphas=(0.1, 0.9))
    pair.close()
    return folder / "teacher", folder / "student", table
