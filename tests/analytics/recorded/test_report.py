"""Recorded logprobs against others: every number against numpy over all tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from tests.rewriting import rewrite
from tokscore.analytics import mismatch
from tokscore.analytics.comparison.reduction import Clusters
from tokscore.analytics.recorded.confidence import KEPT, mismatch_confidence
from tokscore.cli.app import app
from tokscore.dataset.choices import RecordedAgainst
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
FloatArray = NDArray[np.float64]
ROLES = [("user", 4), ("assistant", 6), ("tool", 2), ("assistant", 3)]
N_CONVERSATIONS = 40


def noisy(column: str, seed: int, scale: float = 0.3) -> Callable[[dict[str, pa.Array]], dict[str, pa.Array]]:
    """Sets a column to the scored logprob and noise; null where there is none."""
    rng = np.random.default_rng(seed)

    def change(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        scored = np.array(scores["logprob"].to_pylist(), float)
        values = np.minimum(scored + rng.normal(0, scale, len(scored)), 0.0)
        return scores | {column: pa.array(values.astype(np.float32), from_pandas=True)}

    return change


@pytest.fixture
def recorded(conversation: Make, write_dataset: Make) -> Path:
    """40 conversations whose tokens carry logprobs around the scored ones."""
    many = [conversation(f"c{i:02}", ROLES[: 2 + i % 3], seed=i) for i in range(N_CONVERSATIONS)]
    return write_dataset(many, columns=noisy("recorded_logprob", 0), n_parts=2)  # type: ignore[no-any-return]


def frame_of(path: Path, other: str = "logprob") -> pl.DataFrame:
    table = _rows(path)
    both = table.filter(pl.col("recorded_logprob").is_not_null() & pl.col(other).is_not_null())
    return both.with_columns(d=pl.col(other).cast(pl.Float64) - pl.col("recorded_logprob").cast(pl.Float64))


def _rows(path: Path) -> pl.DataFrame:
    kind = "scores" if (path / "scores").is_dir() else "tokens"
    return pl.concat([pl.read_parquet(each) for each in sorted((path / kind).glob("*.parquet"))])


def test_k1_and_k3_are_of_sampled_tokens_and_everything_else_of_all(recorded: Path) -> None:
    report = mismatch(recorded)
    frame = frame_of(recorded)
    d = frame["d"].to_numpy()
    sampled = frame.filter(pl.col("is_sampled"))["d"].to_numpy()
    assert 0 < len(sampled) < len(d)
    kl = report.total.mismatch_kl
    assert (kl.direction, kl.n_tokens) == ("kl_recorded_scored", len(sampled))
    assert kl.k1 == pytest.approx(-sampled.mean(), abs=1e-12)
    assert kl.k3 == pytest.approx((np.exp(sampled) - 1 - sampled).mean(), abs=1e-12)
    off = report.total.off_policy
    assert report.total.n_tokens == len(d)
    assert report.total.log_ratio == pytest.approx(d.mean(), abs=1e-12)
    assert off.outside_0_9_1_1 == np.mean((np.exp(d) < 0.9) | (np.exp(d) > 1.1))
    weights = np.exp(d)
    assert off.effective_sample_size == pytest.approx(weights.sum() ** 2 / (len(d) * (weights**2).sum()))


def test_k3_of_logprobs_that_are_almost_equal_keeps_its_digits(
    conversation: Make, write_dataset: Make
) -> None:
    gap = 2.0**-23  # the step of float32 between 1 and 2

    def close(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        n = len(scores["logprob"])
        return scores | {
            "logprob": pa.array([None] + [-1.0] * (n - 1), pa.float32()),
            "recorded_logprob": pa.array([None] + [-1.0 - gap] * (n - 1), pa.float32()),
        }

    report = mismatch(write_dataset([conversation("c")], columns=close, top_k=0))
    assert report.total.mismatch_kl.k3 == pytest.approx(gap**2 / 2, rel=1e-6)


def test_estimates_recover_a_kl_that_is_known(conversation: Make, write_dataset: Make) -> None:
    """Tokens drawn from p, recorded under p and scored under q: both estimates are near KL(p || q)."""
    rng = np.random.default_rng(3)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])

    def draw(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        ids = rng.choice(3, len(scores["logprob"]), p=p)
        null_first = np.arange(len(ids)) == 0
        return scores | {
            "logprob": pa.array(np.log(q)[ids].astype(np.float32), mask=null_first),
            "recorded_logprob": pa.array(np.log(p)[ids].astype(np.float32), mask=null_first),
        }

    many = [conversation(f"c{i}", [("assistant", 500)], seed=i) for i in range(60)]
    total = mismatch(write_dataset(many, columns=draw, top_k=0)).total
    exact = float((p * np.log(p / q)).sum())
    assert total.mismatch_kl.k1 == pytest.approx(exact, abs=0.01)
    assert total.mismatch_kl.k3 == pytest.approx(exact, abs=0.003)
    limits = {each.name: each for each in total.confidence}
    for name in ("k1", "k3"):
        lower, upper = limits[name].lower, limits[name].upper
        assert lower is not None
        assert upper is not None
        assert lower < exact < upper


@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("log_ratio", lambda d, _: d.mean()),
        ("mean_abs_log_ratio", lambda d, _: np.abs(d).mean()),
        ("mean_ratio", lambda d, _: np.exp(d).mean()),
        ("chi2", lambda d, _: np.exp(2 * d).mean() - 1),
        ("outside_0_9_1_1", lambda d, _: ((np.exp(d) < 0.9) | (np.exp(d) > 1.1)).mean()),
        ("k1", lambda d, sampled: -d[sampled].mean()),
        ("k3", lambda d, sampled: (np.exp(d) - 1 - d)[sampled].mean()),
    ],
)
def test_confidence_limits_are_those_of_conversations_drawn_again(
    recorded: Path, name: str, statistic: Callable[[FloatArray, NDArray[np.bool_]], float]
) -> None:
    """Against a plain bootstrap of whole conversations, within a third of its width."""
    frame = frame_of(recorded)
    parts = [group for _, group in frame.group_by("conversation_id", maintain_order=True)]
    pieces = [(part["d"].to_numpy(), part["is_sampled"].to_numpy()) for part in parts]
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(2000):
        picked = [pieces[i] for i in rng.integers(0, len(pieces), len(pieces))]
        drawn.append(statistic(*(np.concatenate(each) for each in zip(*picked, strict=True))))
    low, high = np.quantile(drawn, [0.025, 0.975])
    found = {each.name: each for each in mismatch(recorded).total.confidence}[name]
    assert found.n_conversations == N_CONVERSATIONS
    assert found.lower == pytest.approx(low, abs=(high - low) / 3)
    assert found.upper == pytest.approx(high, abs=(high - low) / 3)


def test_limits_of_the_effective_sample_size_contain_it_as_often_as_they_should() -> None:
    """Log weights of -gap and +gap, a sign a conversation: E[w]^2 / E[w^2] = cosh(gap)^2 / cosh(2 gap)."""
    gap, n = 0.5, 60
    exact = math.cosh(gap) ** 2 / math.cosh(2 * gap)
    rng = np.random.default_rng(0)
    n_inside = 0
    for _ in range(200):
        lengths = 50 * rng.integers(5, 15, n) + np.arange(n)  # none is another's copy
        log_weights = rng.choice([-gap, gap], n)
        sums: dict[str, FloatArray] = dict.fromkeys(KEPT, np.zeros(n))
        sums |= {"ratio": lengths * np.exp(log_weights), "squared_ratio": lengths * np.exp(2 * log_weights)}
        clusters = Clusters([(f"c{i}", 0) for i in range(n)], sums, lengths)
        found = dict(mismatch_confidence(clusters, RecordedAgainst.SCORED))["effective_sample_size"]
        assert found.lower is not None
        assert found.upper is not None
        n_inside += found.lower <= exact <= found.upper
    assert 180 <= n_inside <= 199


def test_branches_of_a_conversation_are_drawn_together(conversation: Make, write_dataset: Make) -> None:
    one = [conversation(f"c{i}", ROLES, seed=i) for i in range(5)]
    twice = [each._replace(branch=branch) for each in one for branch in range(2)]
    found = mismatch(write_dataset(twice, columns=noisy("recorded_logprob", 0))).total.confidence
    assert {each.n_conversations for each in found} == {5}


def test_an_impossible_token_makes_the_estimates_infinite_and_gates_fail(
    conversation: Make, write_dataset: Make
) -> None:
    def ruled_out(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        n = len(scores["logprob"])
        return scores | {
            "logprob": pa.array([None] + [-math.inf] * (n - 1), pa.float32()),
            "recorded_logprob": pa.array([None] + [-1.0] * (n - 1), pa.float32()),
        }

    path = write_dataset([conversation("c")], columns=ruled_out, top_k=0)
    found = run("diff", "--recorded", path, "--fail-if", "mismatch_kl.k3 > 0.1", "--format", "json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["total"]["mismatch_kl"]["k3"] is None
    assert "failed: mismatch_kl.k3 > 0.1 (it is inf)" in found.stderr


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_gates_hold_on_recorded_numbers(recorded: Path) -> None:
    passing = run("diff", "--recorded", recorded, "--fail-if", "role=assistant: mismatch_kl.k3 > 1")
    assert passing.exit_code == 0, passing.output
    k3 = {row.group: row for row in mismatch(recorded).groups}["assistant"].mismatch_kl.k3
    condition = "role=assistant: mismatch_kl.k3 > 0.001"
    failing = run("diff", "--recorded", recorded, "--fail-if", condition)
    assert failing.exit_code == 1
    assert f"failed: {condition} (it is {k3:.6g})" in failing.stderr
    share = run("diff", "--recorded", recorded, "--fail-if", "confidence.outside_0_9_1_1.upper > 0.1")
    assert share.exit_code == 1
    empty = run("diff", "--recorded", recorded, "--fail-if", "role=user: mismatch_kl.k1 > 1")
    assert empty.exit_code == 1
    assert "no token with both logprobs is known to be sampled" in empty.stderr


def test_a_number_that_is_not_there_is_refused_before_any_row_is_read(recorded: Path, tmp_path: Path) -> None:
    """Of the parts, only what says where the columns are is whole, which nobody notices."""
    for path in (recorded / "scores").glob("*.parquet"):
        content = bytearray(path.read_bytes())
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        content[4:footer] = bytes(footer - 4)
        path.write_bytes(bytes(content))
    out = tmp_path / "out"
    found = run("diff", "--recorded", recorded, "--fail-if", "mismatch_kl.k2 > 0.1", "-o", out)
    assert isinstance(found.exception, UsageError)
    assert "there is no mismatch_kl.k2; did you mean mismatch_kl.k" in str(found.exception)
    assert not out.exists()
    assert isinstance(run("diff", "--recorded", recorded).exception, InputError)


def test_tables_hold_every_token_and_every_group(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("diff", "--recorded", recorded, "--by", "source", "-o", out).exit_code == 0
    tokens, frame = pl.read_parquet(out / "tokens.parquet"), frame_of(recorded)
    for mine, theirs in (("recorded_logprob",) * 2, ("scored_logprob", "logprob"), ("log_ratio", "d")):
        np.testing.assert_array_equal(tokens[mine].to_numpy(), frame[theirs].cast(pl.Float64).to_numpy())
    for name in ("conversation_id", "position", "token_id", "source", "is_sampled"):
        assert tokens[name].to_list() == frame[name].to_list()
    groups = pl.read_parquet(out / "groups.parquet")
    mean = frame.group_by("source").agg(pl.col("d").mean())
    known = groups.filter(pl.col("n_tokens") > 0).select("source", "log_ratio")
    assert dict(known.iter_rows()) == pytest.approx(dict(mean.iter_rows()))


def test_the_noise_floor_stands_beside_the_gaps(recorded: Path, tmp_path: Path) -> None:
    floor = tmp_path / "selfcheck.json"
    floor.write_text('{"noise_floor": {"mean": 7e-6, "p99": 2e-5, "max": 1.1e-4}}')
    found = run("diff", "--recorded", recorded, "--noise-floor", floor)
    assert "log-ratios of 7e-06 on average" in found.stderr
    found = run("diff", "--recorded", recorded, "--noise-floor", floor, "--format", "json")
    assert json.loads(found.stdout)["noise_floor"]["p99"] == 2e-5


TRAINER = {
    "step": 3,
    "rank": 0,
    "token_ids": [1, 20, 3, 30, 2, 4, 3, 50],
    "loss_mask": [False, False, False, True, True, False, False, True],
    "inference_logprobs": [0.0, 0.0, 0.0, -0.5, -0.75, 0.0, 0.0, -1.5],
    "trainer_logprobs": [-9.0, -4.0, -4.0, -0.5, -0.25, -4.0, -4.0, -1.25],
}
NEMO = {
    "token_ids": [[1, 20, 3, 30, 31, 2, 258]],
    "input_lengths": [6],
    "token_loss_mask": [[0, 0, 0, 1, 1, 1, 0]],
    "generation_logprobs": [[0.0, 0.0, 0.0, -0.5, -0.25, -0.125, 0.0]],
    "prev_logprobs": [[0.0, -3.0, -3.0, -0.5, -0.25, -0.25, 0.0]],
}


@pytest.mark.parametrize(("record", "gaps"), [(TRAINER, [0.0, 0.5, 0.25]), (NEMO, [0.0, 0.0, -0.125])])
def test_files_that_carry_both_logprobs_need_no_model(
    tmp_path: Path, record: dict[str, Any], gaps: list[float]
) -> None:
    path = tmp_path / "rank_0.jsonl"
    path.write_text(json.dumps(record) + "\n")
    report = mismatch(path)
    d = np.array(gaps)
    assert report.against == "trainer"
    assert report.total.n_tokens == 3
    assert report.total.mismatch_kl == (
        "kl_recorded_trainer",
        3,
        pytest.approx(-d.mean()),
        pytest.approx((np.exp(d) - 1 - d).mean()),
    )
    assert [row.group for row in report.groups if row.n_tokens] == ["assistant"]
    found = run("diff", "--recorded", path, "--format", "json")
    assert json.loads(found.stdout)["total"]["trainer_logprob"] == report.total.other_logprob


def test_a_token_dataset_carries_the_logprobs_of_the_trainer(tmp_path: Path, tiny_model: Path) -> None:
    path, tokens = tmp_path / "rank_0.jsonl", tmp_path / "tokens"
    path.write_text(json.dumps(TRAINER) + "\n")
    made = run("render", path, "-m", tiny_model, "-o", tokens)
    assert made.exit_code == 0, made.output
    assert mismatch(tokens).total == mismatch(path).total
    scores = tmp_path / "scores"
    assert run("logprobs", tokens, "-m", tiny_model, "-o", scores).exit_code == 0
    assert mismatch(scores, against="trainer").total == mismatch(path).total
    assert mismatch(scores).against == "scored"
    with pytest.raises(InputError, match="is a dataset of tokens; expected scores"):
        mismatch(tokens, against="scored")


def test_a_dataset_that_was_made_before_trainers_were_read_has_none(
    conversation: Make, write_dataset: Make
) -> None:
    path = write_dataset([conversation("c")], kind=DatasetKind.TOKENS)
    for part in (path / "tokens").glob("*.parquet"):
        rewrite(pq.read_table(part).drop_columns(["trainer_logprob"]), part)
    with pytest.raises(InputError, match="no token with a recorded logprob and one of a trainer"):
        mismatch(path)


def test_records_that_are_none_end_the_run_or_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    bad, text = {**TRAINER, "trainer_logprobs": [-1.0]}, {"messages": [{"role": "user", "content": "Hi"}]}
    path.write_text("".join(json.dumps(record) + "\n" for record in (TRAINER, bad)))
    with pytest.raises(InputError, match=r"rank_0\.jsonl:2: \$\.trainer_logprobs has 1 value; expected 8"):
        mismatch(path)
    report = mismatch(path, on_error="skip")
    assert (report.n_conversations, len(report.failures)) == (1, 1)
    found = run("diff", "--recorded", path, "--on-error", "skip")
    assert "warning: 1 record could not be read" in found.stderr
    path.write_text(json.dumps(text) + "\n")
    with pytest.raises(InputError, match="no token with a recorded logprob and one of a trainer"):
        mismatch(path)


def test_files_refuse_what_only_a_template_or_a_model_tells(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    path.write_text(json.dumps(TRAINER) + "\n")
    with pytest.raises(UsageError, match="only the template tells the source"):
        mismatch(path, by="source")
    with pytest.raises(UsageError, match="files have no scores"):
        mismatch(path, against="scored")
    path.write_text(json.dumps({key: TRAINER[key] for key in ("token_ids", "loss_mask")}) + "\n")
    with pytest.raises(InputError, match="no token with a recorded logprob and one of a trainer"):
        mismatch(path)
