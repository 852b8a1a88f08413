"""Models that disagree without measure or rule tokens out: lists and exact values against float64 by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
from numpy.typing import NDArray  # noqa: E402

from tests.analytics.exact.pairs import Pair, score_pair  # noqa: E402
from tests.scoring.tiny_models import VOCAB_SIZE, save_bigram  # noqa: E402
from tokscore.analytics import diff_report  # noqa: E402
from tokscore.analytics.exact.report import exact_report  # noqa: E402
from tokscore.analytics.exact.run import StartModels  # noqa: E402
from tokscore.dataset.errors import InputError  # noqa: E402
from tokscore.scoring import plan_engine  # noqa: E402
from tokscore.scoring.exact.measuring import measuring  # noqa: E402

Floats = NDArray[np.float64]
ALPHA = 0.1
NAMES = ("kl_teacher_student", "kl_student_teacher", "total_variation", "entropy_teacher", "entropy_student")
MIXED = ("gjs_0.1", "skew_kl_0.1")


def log_softmax(logits: Floats) -> Floats:
    rest: Floats = logits - logits.max(-1, keepdims=True)
    return rest - np.log(np.exp(rest).sum(-1, keepdims=True))


def kl(log_p: Floats, log_q: Floats) -> Floats:
    """Sum of p log(p / q) in each row, where an id without mass adds nothing."""
    p = np.exp(log_p)
    terms = np.zeros_like(p)
    np.multiply(p, np.subtract(log_p, log_q, out=terms, where=p > 0), out=terms, where=p > 0)
    return terms.sum(-1)


def by_hand(log_p: Floats, log_q: Floats) -> dict[str, Floats]:
    """Every measure of rows of two whole distributions."""
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(divide="ignore"):
        log_m = np.log(ALPHA * p + (1 - ALPHA) * q)
    return {
        "kl_teacher_student": kl(log_p, log_q),
        "kl_student_teacher": kl(log_q, log_p),
        "total_variation": np.abs(p - q).sum(-1) / 2,
        "entropy_teacher": -np.where(p > 0, p * np.where(p > 0, log_p, 0), 0).sum(-1),
        "entropy_student": -np.where(q > 0, q * np.where(q > 0, log_q, 0), 0).sum(-1),
        "gjs_0.1": ALPHA * kl(log_p, log_m) + (1 - ALPHA) * kl(log_q, log_m),
        "skew_kl_0.1": kl(log_p, log_m),
    }


def make_pair(
    folder: Path,
    teacher: Floats,
    student: Floats,
    sequences: list[list[int]],
    top_k: int,
    temperature: float = 1,
) -> Pair:
    """Scores by two models whose logits are a row for each last token."""
    for name, logits in (("teacher", teacher), ("student", student)):
        save_bigram(folder / f"{name}-model", torch.from_numpy(logits))
    records = [
        {"id": f"c{i}", "prompt_token_ids": ids[:1], "completion_token_ids": ids[1:]}
        for i, ids in enumerate(sequences)
    ]
    (folder / "convs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    models = [folder / f"{name}-model" for name in ("teacher", "student")]
    return score_pair(folder, folder / "convs.jsonl", *models, top_k=top_k, temperature=temperature)


def random_sequences(n: int) -> list[list[int]]:
    """Of ids that are no control tokens and none of those with rows of their own."""
    rng = np.random.default_rng(1)
    return [[5, *rng.integers(40, 250, 60).tolist()] for _ in range(n)]


def start(pair: Pair, alpha: float, temperature: float = 1) -> StartModels:
    plans = [
        plan_engine(str(model), engine="transformers", top_k=0, temperature=temperature)
        for model in (pair.teacher_model, pair.student_model)
    ]
    return lambda ahead: measuring(*plans, ahead, alphas=[alpha])


@pytest.mark.parametrize("top_k", [1, 5])
def test_a_log_ratio_of_1200_stays_within_ln_2(tmp_path: Path, top_k: int) -> None:
    """After id 1 the first gives all to id 2, the second half each to 2 and 3; at a temperature of 0.01."""
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(VOCAB_SIZE, VOCAB_SIZE)) * 0.01
    student = teacher.copy()
    teacher[1], student[1] = -40, -40
    teacher[1, 2], teacher[1, 3] = 0, -12
    student[1, 2] = student[1, 3] = 0
    [ids] = random_sequences(1)
    ids = [*ids, 1, 2, *ids]
    pair = make_pair(tmp_path, teacher, student, [ids, ids], top_k, temperature=0.01)
    log_p, log_q = (log_softmax(logits[ids[:-1]] / 0.01) for logits in (teacher, student))
    p, q = np.exp(log_p), np.exp(log_q)
    log_m = np.log((p + q) / 2, where=p + q > 0, out=np.full_like(p, -np.inf))
    gjs = (kl(log_p, log_m) + kl(log_q, log_m)) / 2
    # Only the row behind id 1 differs, where it is 3/4 ln(4/3).
    assert gjs.sum() == pytest.approx(0.75 * np.log(4 / 3))
    report = diff_report(pair.teacher, pair.student, out=tmp_path / "out")
    interval = report.total.gjs
    assert interval.lower <= gjs.mean() <= interval.upper <= np.log(2)
    tokens = pl.read_parquet(tmp_path / "out/tokens.parquet").filter(pl.col("conversation_id") == "c0")
    assert (tokens["gjs_0.5_lower"].to_numpy() <= gjs + 1e-12).all()
    assert (tokens["gjs_0.5_upper"].to_numpy() >= gjs - 1e-12).all()
    run = pair.run(tmp_path / "parts", alphas=[0.5], start=start(pair, 0.5, 0.01))
    assert exact_report(run).total.values["gjs_0.5"] == pytest.approx(gjs.mean(), rel=1e-5)


# Rows in which ids have probability 0: of the teacher, of the student, and of both.
OF_TEACHER, OF_STUDENT, OF_BOTH = 11, 12, 13
RULED_OUT = 30


@pytest.fixture(scope="module")
def logits() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(2)
    teacher, student = (rng.normal(size=(VOCAB_SIZE, VOCAB_SIZE)) * 2 for _ in range(2))
    teacher[[OF_TEACHER, OF_BOTH], RULED_OUT] = -np.inf
    student[[OF_STUDENT, OF_BOTH], RULED_OUT] = -np.inf
    return teacher, student


def with_pairs(*pairs: tuple[int, int]) -> list[list[int]]:
    """Sequences in which these follow each other."""
    sequences = random_sequences(3)
    sequences[1] += [token for pair in pairs for token in (*pair, 50)]
    return sequences


# One of both rules the token itself out, then one that is not there, then both.
DEFINED = with_pairs(
    (OF_TEACHER, RULED_OUT), (OF_STUDENT, RULED_OUT), (OF_TEACHER, 51), (OF_STUDENT, 52), (OF_BOTH, 53)
)


@pytest.mark.parametrize("top_k", [5, VOCAB_SIZE])
def test_probabilities_of_0_are_compared(logits: tuple[Floats, Floats], tmp_path: Path, top_k: int) -> None:
    pair = make_pair(tmp_path, *logits, DEFINED, top_k)
    report = diff_report(pair.teacher, pair.student, alpha=ALPHA, out=tmp_path / "out")
    table = pl.read_parquet(tmp_path / "out/tokens.parquet")
    log_p, log_q = (log_softmax(np.concatenate([each[ids[:-1]] for ids in DEFINED])) for each in logits)
    targets = np.concatenate([ids[1:] for ids in DEFINED])
    rows = np.arange(len(targets))
    expected = by_hand(log_p, log_q)
    teacher, student = log_p[rows, targets], log_q[rows, targets]
    np.testing.assert_allclose(table["teacher_logprob"], teacher, atol=2e-5)
    np.testing.assert_allclose(table["student_logprob"], student, atol=2e-5)
    np.testing.assert_allclose(table["log_ratio"], teacher - student, atol=4e-5)
    assert (np.isneginf(teacher).sum(), np.isneginf(student).sum()) == (1, 1)
    # After OF_STUDENT the teacher allows what the student rules out, and the other way round.
    assert (
        np.isinf(expected["kl_teacher_student"]).sum() == np.isinf(expected["kl_student_teacher"]).sum() == 2
    )
    for name, values in expected.items():
        lower, upper = (table[f"{name}_{end}"].fill_null(np.inf).to_numpy() for end in ("lower", "upper"))
        assert (lower <= values + 2e-5).all(), name
        assert (upper >= values - 2e-5).all(), name
        if top_k == VOCAB_SIZE:
            np.testing.assert_allclose(lower, values, atol=2e-4, err_msg=name)
        if not name.startswith("kl_"):
            assert np.isfinite(upper).all()
    assert report.total.log_ratio is None
    assert report.total.kl_teacher_student.upper is None
    exact = exact_report(pair.run(tmp_path / "parts", alphas=[ALPHA], start=start(pair, ALPHA)))
    values = pl.read_parquet(tmp_path / "parts")
    for name in (*NAMES, *MIXED):
        np.testing.assert_allclose(values[name], expected[name], atol=2e-5, err_msg=name)
        mean = expected[name].mean()
        assert exact.total.values[name] == (pytest.approx(mean, abs=1e-5) if np.isfinite(mean) else None)
    assert {name: exact.total.n_infinite[name] for name in NAMES[:2]} == dict.fromkeys(NAMES[:2], 2)
    assert exact.total.values["log_ratio"] is None


def test_a_token_that_both_rule_out_is_left_out_with_its_conversation_alone(
    logits: tuple[Floats, Floats], tmp_path: Path
) -> None:
    sequences = with_pairs((OF_TEACHER, 51), (OF_BOTH, RULED_OUT))
    pair = make_pair(tmp_path, *logits, sequences, 5)
    place = rf"conversation 'c1', position 65: both models give id {RULED_OUT} the logprob -inf"
    with pytest.raises(InputError, match=place):
        diff_report(pair.teacher, pair.student)
    report = diff_report(pair.teacher, pair.student, alpha=ALPHA, on_error="skip")
    assert [each.conversation_id for each in report.skipped] == ["c1"]
    keys = [(each.conversation_id, each.branch) for each in report.skipped]
    run = pair.run(tmp_path / "parts", alphas=[ALPHA], without=keys, start=start(pair, ALPHA))
    kept = [sequences[0], sequences[2]]
    log_p, log_q = (log_softmax(np.concatenate([each[ids[:-1]] for ids in kept])) for each in logits)
    values = exact_report(run).total.values
    for name, expected in by_hand(log_p, log_q).items():
        assert values[name] == pytest.approx(expected.mean(), abs=1e-5), name
