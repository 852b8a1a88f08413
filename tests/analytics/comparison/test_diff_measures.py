"""Every number of a comparison against a direct sum over whole distributions, and what is written."""

from __future__ import annotations

import csv
import io
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
from tokscore.analytics import breaches, mismatch, parse_gate, parse_group_by
from tokscore.analytics import diff_report as diff
from tokscore.analytics.comparison.off_policy import effective_sample_size
from tokscore.cli.app import app
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.schema import VOCABULARY

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
FloatArray = NDArray[np.float64]
ROLES = [("user", 4), ("assistant", 6), ("tool", 2), ("assistant", 3)]


class Both:
    """The same tokens under two models, and both datasets."""

    def __init__(self, conversation: Make, write_dataset: Make, **settings: Any) -> None:
        self.teacher = [conversation(f"c{i}", ROLES[: 1 + i % 4], seed=i) for i in range(9)]
        self.student = [
            conversation(c.conversation_id, c.messages, seed=i, model=1) for i, c in enumerate(self.teacher)
        ]
        self.paths = write_dataset(self.teacher, **settings), write_dataset(self.student, **settings)

    def exact(self) -> tuple[FloatArray, FloatArray]:
        """Logprobs over the vocabulary of every compared token."""
        return tuple(np.concatenate([c.logprobs[1:] for c in side]) for side in (self.teacher, self.student))  # type: ignore[return-value]

    def realised(self) -> tuple[FloatArray, FloatArray]:
        ids = np.concatenate([c.token_ids[1:] for c in self.teacher])
        rows = np.arange(len(ids))
        return tuple(side[rows, ids].astype(np.float32).astype(np.float64) for side in self.exact())  # type: ignore[return-value]


@pytest.fixture
def both(conversation: Make, write_dataset: Make) -> Both:
    return Both(conversation, write_dataset)


def test_intervals_of_all_measures_contain_the_exact_means(both: Both) -> None:
    total = diff(*both.paths, alpha=[0.2, 0.7]).total
    log_p, log_q = both.exact()
    p, q = np.exp(log_p), np.exp(log_q)
    exact = {
        "total_variation": np.abs(p - q).sum(axis=1) / 2,
        "entropy_teacher": -(p * log_p).sum(axis=1),
        "entropy_student": -(q * log_q).sum(axis=1),
    }
    for alpha in (0.2, 0.7):
        log_m = np.log(alpha * p + (1 - alpha) * q)
        skew, other = (p * (log_p - log_m)).sum(axis=1), (q * (log_q - log_m)).sum(axis=1)
        exact |= {f"skew_kl_{alpha}": skew, f"gjs_{alpha}": alpha * skew + (1 - alpha) * other}
    for name, values in exact.items():
        interval = total.intervals[name]
        assert interval.lower is not None
        assert interval.upper is not None
        assert 0 < interval.lower <= values.mean() <= interval.upper < 10


def test_realised_tokens_give_ratios_ranks_and_probabilities(both: Both) -> None:
    total = diff(*both.paths).total
    mine, theirs = both.realised()
    log_ratios = mine - theirs
    weights = np.exp(log_ratios)
    off = total.off_policy
    assert off.mean_abs_log_ratio == pytest.approx(np.abs(log_ratios).mean(), rel=1e-12)
    assert off.effective_sample_size == pytest.approx(
        weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    )
    assert off.chi2 == pytest.approx((weights**2).mean() - 1)
    assert off.outside_0_9_1_1 == np.mean((weights < 0.9) | (weights > 1.1))
    assert off.outside_0_5_2 == np.mean((weights < 0.5) | (weights > 2))
    assert (off.clipped_low, off.clipped_high) == (np.mean(weights < 0.8), np.mean(weights > 1.2))
    assert off.log_ratio.p50 == pytest.approx(np.sort(log_ratios)[math.ceil(len(weights) / 2) - 1], rel=2e-3)
    sums = np.add.reduceat(log_ratios, np.cumsum([0, *(len(c.token_ids) - 1 for c in both.teacher[:-1])]))
    assert off.sequence_sum == pytest.approx((sums.mean(), sums.min(), sums.max()))
    assert total.delta_p == pytest.approx((np.exp(mine) - np.exp(theirs)).mean(), abs=1e-12)
    log_p = both.exact()[0]
    ranks = (log_p >= mine[:, None] - 1e-6).sum(axis=1)
    assert total.teacher_rank == pytest.approx((ranks.mean(), (ranks == 1).mean()))


def test_the_pooled_effective_sample_size_uses_raw_weights() -> None:
    weights = np.array([1.0, 1, 1, 1, 2, 2, 2, 2])
    assert effective_sample_size(weights.sum(), (weights**2).sum(), 8) == pytest.approx(0.9, abs=1e-15)


def test_the_effective_sample_size_is_pooled_over_conversations(
    conversation: Make, write_dataset: Make
) -> None:
    ours = [conversation("ones", [("user", 4)]), conversation("twos", [("user", 4)], seed=1)]

    def side(*logprobs: float) -> Any:
        left = [pa.array([None] + [each] * 4, pa.float32()) for each in logprobs]
        return write_dataset(ours, top_k=0, columns=lambda scores: scores | {"logprob": left.pop(0)})

    off = diff(side(-1.0, -1.0), side(-1.0, -1.0 - math.log(2))).total.off_policy
    assert off.effective_sample_size == pytest.approx(0.9, abs=1e-7)
    assert off.mean_ratio == pytest.approx(1.5, abs=1e-6)


def test_estimates_need_a_sampler_and_name_it(both: Both) -> None:
    assert diff(*both.paths).total.estimate is None
    estimate = diff(*both.paths, sampled_by="student").total.estimate
    assert estimate is not None
    assert (estimate.sampler, estimate.direction) == ("student", "kl_student_teacher")


def test_estimates_are_of_the_tokens_that_are_known_to_be_sampled(
    conversation: Make, write_dataset: Make
) -> None:
    sampled = {"yes": 1, "unknown": -1, "no": 0}
    sides = [
        [
            conversation(name, ROLES, seed=i, model=model)._replace(sampled=sampled[name])
            for i, name in enumerate(sampled)
        ]
        for model in (0, 1)
    ]
    report = diff(*(write_dataset(side) for side in sides), sampled_by="student")
    rows = np.flatnonzero([role == "assistant" for role, n in [("", 1), *ROLES] for _ in range(n)])
    teacher, student = (side[0].logprobs[rows, side[0].token_ids[rows]] for side in sides)
    k1 = student - teacher
    for row in report.rows():
        estimate = row.estimate
        assert estimate is not None
        if row.group in ("assistant", None) and row.n_tokens:
            assert estimate.n_tokens == len(rows) == 9
            assert estimate.k1 == pytest.approx(k1.mean(), abs=1e-6)
            assert estimate.k3 == pytest.approx((np.exp(-k1) - 1 + k1).mean(), abs=1e-6)
        else:
            assert estimate[2:] == (0, None, None, None)
    halved = [write_dataset(side, settings={"temperature": 0.5}) for side in sides]
    with pytest.raises(InputError, match=r"settings.temperature is 0.5; expected 1.0"):
        diff(*halved, sampled_by="student")


def test_tables_hold_every_token_and_every_group(both: Both, tmp_path: Path) -> None:
    report = diff(*both.paths, by="role,source", out=tmp_path / "out")
    tokens = pl.read_parquet(tmp_path / "out/tokens.parquet")
    assert tokens.height == report.total.n_tokens
    assert tokens["gjs_0.5_lower"].mean() == pytest.approx(report.total.gjs.lower, rel=1e-12)
    assert tokens["kl_teacher_student_upper"].null_count() == tokens.height
    assert (
        tokens.select("conversation_id", "branch", "position", "token_id", "role", "source")
        .null_count()
        .sum_horizontal()[0]
        == 0
    )
    groups = pl.read_parquet(tmp_path / "out/groups.parquet")
    assert list(zip(groups["role"], groups["source"], strict=True)) == [row.group for row in report.groups]
    assert groups["gjs_0.5.lower"].to_list() == [row.gjs.lower for row in report.groups]
    with pytest.raises(UsageError, match="is not empty"):
        diff(*both.paths, out=tmp_path / "out")


def test_the_most_divergent_tokens_come_with_their_text(both: Both, tmp_path: Path) -> None:
    letters = [chr(65 + i) for i in range(50)]
    table = {"token_id": range(50), "text": letters, "bytes": [letter.encode() for letter in letters]}
    vocabulary = pa.table({name: list(values) for name, values in table.items()}, schema=VOCABULARY)
    rewrite(vocabulary, both.paths[0] / "vocab.parquet")
    contexts = diff(*both.paths, out=tmp_path / "out").contexts
    tokens = pl.read_parquet(tmp_path / "out/tokens.parquet")
    assert [each.lower for each in contexts] == sorted(tokens["gjs_0.5_lower"], reverse=True)[:10]
    for each in contexts:
        ids = next(c for c in both.teacher if c.conversation_id == each.conversation_id).token_ids
        text = "".join(letters[i] for i in ids)
        assert each.before + each.token + each.after == text[: each.position + 9]
        assert each.token == text[each.position]


def test_conditions_hold_or_not(both: Both) -> None:
    report = diff(*both.paths)
    by = parse_group_by("role")
    (tool,) = [row for row in report.groups if row.group == "tool"]
    assert tool.gjs.lower is not None

    def holds(text: str) -> bool:
        return bool(breaches(report, [parse_gate(text, by)]))

    assert holds(f"role=tool: gjs_0.5.lower > {tool.gjs.lower - 1e-6}")
    assert not holds(f"role=tool: gjs_0.5.lower > {tool.gjs.lower}")
    assert holds("kl_teacher_student.upper > 1e9")
    assert holds("off_policy.effective_sample_size < 1")
    assert not holds("kl_teacher_student.upper < 1e9")
    assert holds("role=tool: confidence.kl_teacher_student.upper > 1e9")
    assert not holds("role=tool: confidence.kl_teacher_student.upper < 1e9")


@pytest.mark.parametrize(
    ("by", "condition", "reason"),
    [
        ("role", "role=(no message): log_ratio > 100", "the group has no tokens that both models scored"),
        ("role", "off_policy.chi2 < 0", "beyond the range of float64"),
        ("role", "role=user: confidence.log_ratio.lower > 0", "1 conversation set none"),
        ("conversation_id", "conversation_id=c: off_policy.log_ratio.p99 > 9", "as many groups as positions"),
        (
            "conversation_id",
            "conversation_id=c: confidence.log_ratio.upper > 9",
            "as many groups as positions",
        ),
        ("role", "role=user: teacher_rank.mean > 9", "no ranks or lists"),
    ],
)
def test_a_condition_about_a_number_without_a_value_fails_and_says_why(
    conversation: Make, write_dataset: Make, by: str, condition: str, reason: str
) -> None:
    def side(logprob: float) -> Any:
        def columns(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
            return {
                **scores,
                "logprob": pa.array([None] + [logprob] * 4, pa.float32()),
                "rank": pa.nulls(5, pa.int32()),
            }

        return write_dataset([conversation("c", [("user", 4)])], top_k=0, columns=columns)

    found = run("diff", side(-1.0), side(-800.0), "--by", by, "--fail-if", condition, "--format", "json")
    assert found.exit_code == 1
    assert f"failed: {condition} (it has no value: " in found.stderr
    assert reason in found.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gjs_0.5.lower 0.05", "is no condition"),
        ("role=assistant: gjs_0.5.lower > x", "is no condition"),
        ("source=content: gjs_0.5.lower > 0", "names the columns source; expected role"),
        ("role=robot: gjs_0.5.lower > 0", "there is no such group; expected one of role=assistant"),
        ("gjs_0.4.lower > 0", r"no gjs_0.4.lower; did you mean gjs_0.5.lower .*\? Expected one of n_tokens"),
    ],
)
def test_conditions_about_nothing_are_refused(both: Both, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        breaches(diff(*both.paths), [parse_gate(text, parse_group_by("role"))])


def spoiled(value: float, n_rows: int) -> Callable[[dict[str, pa.Array]], dict[str, pa.Array]]:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        values = scores["logprob"].to_pylist()
        if len(values) == n_rows:
            values[2] = value
        return scores | {"logprob": pa.array(values, pa.float32())}

    return spoil


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_bad_conversations_are_skipped_and_counted(
    conversation: Make, write_dataset: Make, value: float
) -> None:
    ours = [conversation(f"c{i}", ROLES[: 1 + i % 4], seed=i) for i in range(8)]
    good, bad = write_dataset(ours), write_dataset(ours, columns=spoiled(value, 13))
    report = diff(good, bad, on_error="skip")
    assert [each.conversation_id for each in report.skipped] == ["c2", "c6"]
    assert (
        f"conversation 'c2', position 2: the logprob of id {ours[2].token_ids[2]} is"
        in report.skipped[0].reason
    )
    rest = [c for c in ours if c.conversation_id not in {"c2", "c6"}]
    assert report.total == diff(write_dataset(rest), write_dataset(rest)).total


def record(root: Path, change: Callable[[float], float], first: int = 0) -> None:
    """Have every second token of a dataset carry a logprob, changed from the scored one."""
    path = root / "scores/part-00000.parquet"
    table = pq.read_table(path)
    values = [
        None if v is None or i % 2 else change(v) for i, v in enumerate(table["logprob"].to_pylist(), first)
    ]
    index = table.column_names.index("recorded_logprob")
    column = pa.array(values, pa.float32())
    rewrite(table.set_column(index, table.schema.field(index), column), path)


def test_recorded_logprobs_are_held_against_scored_ones(conversation: Make, write_dataset: Make) -> None:
    path = write_dataset([conversation(f"c{i}", ROLES, seed=i) for i in range(4)])
    with pytest.raises(InputError, match="no token with a recorded and a scored logprob"):
        mismatch(path)
    record(path, lambda logprob: logprob - math.log(2))
    report = mismatch(path)
    table = pl.read_parquet(path / "scores/*.parquet")
    n_both = table.filter(pl.col("recorded_logprob").is_not_null() & pl.col("logprob").is_not_null()).height
    assert report.total.n_tokens == n_both
    assert report.total.n_unrecorded == table.height - n_both
    assert report.total.log_ratio == pytest.approx(math.log(2), abs=1e-6)
    off = report.total.off_policy
    assert off.mean_ratio == pytest.approx(2, abs=1e-5)
    assert off.effective_sample_size == pytest.approx(1, abs=1e-9)
    assert (off.outside_0_9_1_1, off.clipped_low, off.clipped_high) == (1, 0, 1)
    assert sum(row.n_tokens for row in report.groups) == n_both


def test_a_recorded_logprob_that_is_none_is_refused_or_skipped(
    conversation: Make, write_dataset: Make
) -> None:
    path = write_dataset([conversation(f"c{i}", ROLES[: 1 + i], seed=i) for i in range(4)])
    seen: list[float] = []
    record(path, lambda logprob: seen.append(logprob) or (0.5 if len(seen) == 1 else logprob))  # type: ignore[func-returns-value]
    with pytest.raises(InputError, match="conversation 'c0', position 2: the recorded logprob is"):
        mismatch(path)
    report = mismatch(path, on_error="skip")
    assert [each.conversation_id for each in report.skipped] == ["c0"]
    assert report.total.log_ratio == 0
    rest = write_dataset([conversation(f"c{i}", ROLES[: 1 + i], seed=i) for i in range(1, 4)])
    # Rows count from the beginning of the file, and c0 has five.
    record(rest, lambda logprob: logprob, first=5)
    expected = mismatch(rest)
    assert (report.groups, report.total) == (expected.groups, expected.total)
    assert report.n_conversations == expected.n_conversations == 3


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_prints_tables_and_fails_on_a_condition(both: Both) -> None:
    found = run("diff", *both.paths, "--alpha", 0.2, "--alpha", 0.5, "--by", "role,source", "--details")
    assert found.exit_code == 0, found.output
    for text in (
        "skew KL 0.2",
        "GJS 0.5",
        "Further measures",
        "Realised tokens",
        "95 % confidence",
        "10 tokens where",
    ):
        assert text in found.stdout
    gate = run("diff", *both.paths, "--fail-if", "role=assistant: gjs_0.5.lower > 0.0001", "--format", "json")
    assert gate.exit_code == 1
    assert json.loads(gate.stdout)["total"]["gjs_0.5"]["lower"] > 0
    assert "failed: role=assistant: gjs_0.5.lower > 0.0001 (it is" in gate.stderr


def test_the_command_holds_recorded_logprobs_against_scored_ones(
    conversation: Make, write_dataset: Make
) -> None:
    path = write_dataset([conversation("c", ROLES)])
    record(path, lambda logprob: logprob)
    found = run("diff", "--recorded", path, "--format", "json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["total"]["off_policy"]["mean_ratio"] == 1
    assert "tokens with both logprobs" in found.stderr


def test_every_output_says_where_confidence_limits_are_rough(both: Both, tmp_path: Path) -> None:
    found = run("diff", *both.paths, "--format", "csv", "-o", tmp_path / "out")
    assert found.exit_code == 0, found.output
    *_, total = csv.DictReader(io.StringIO(found.stdout))
    assert total["confidence.log_ratio.is_rough"] == "True"
    assert "rough where there are fewer than 30 conversations" in found.stderr
    groups = pl.read_parquet(tmp_path / "out/groups.parquet")
    assert groups.schema["confidence.gjs_0.5.is_rough"] == pl.Boolean
    assert groups["confidence.gjs_0.5.is_rough"].drop_nulls().to_list() == [True, True, True]


def test_more_than_200_groups_have_no_confidence_limits_and_a_note(
    conversation: Make, write_dataset: Make
) -> None:
    sides = [[conversation(f"c{i}", [("user", 1)] * 200, model=model) for i in range(2)] for model in (0, 1)]
    found = run("diff", *map(write_dataset, sides), "--by", "message_index", "--format", "json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert not any(group["confidence"] for group in report["groups"])
    assert report["total"]["confidence"]
    assert "Only all tokens together have confidence limits: 201 groups are more than 200." in found.stderr


def test_the_command_says_that_shared_tokens_count_once_a_branch(
    conversation: Make, write_dataset: Make
) -> None:
    one = conversation("c", ROLES)
    branches, alone = write_dataset([one, one._replace(branch=1)]), write_dataset([one])
    record(branches, lambda logprob: logprob)
    said = "1 conversation with several branches: a token that branches share counts once for each of them"
    for arguments in ((branches, branches), ("--recorded", branches)):
        found = run("diff", *arguments, "--format", "json")
        assert found.exit_code == 0, found.output
        assert "2 conversations" in found.stderr
        assert said in found.stderr
    assert "several branches" not in run("diff", alone, alone).stderr


def test_the_noise_floor_stands_beside_the_gaps(both: Both, tmp_path: Path) -> None:
    path = tmp_path / "selfcheck.json"
    path.write_text(
        '{"engine": "x", "noise_floor": {"mean": 7e-6, "p99": 2e-5, "max": 1.1e-4, "warm": null}}'
    )
    found = run("diff", *both.paths, "--noise-floor", path)
    assert found.exit_code == 0, found.output
    assert "log-ratios of 7e-06 on average, 2e-05 at the 99th percentile, 0.00011 at most" in found.stderr
    rows = csv.DictReader(
        io.StringIO(run("diff", *both.paths, "--noise-floor", path, "--format", "csv").stdout)
    )
    assert {(row["noise_floor.mean"], row["noise_floor.p99"]) for row in rows} == {("7e-06", "2e-05")}
    path.write_text("{}")
    with pytest.raises(InputError, match="holds no noise floor"):
        diff(*both.paths, noise_floor=path)


def test_groups_come_from_the_metadata_of_conversations(both: Both) -> None:
    path = both.paths[0] / "conversations/part-00000.parquet"
    table = pq.read_table(path)
    texts = [f'{{"task": {{"name": "{"ab"[i % 2]}"}}}}' if i else None for i in range(table.num_rows)]
    index = table.column_names.index("metadata")
    rewrite(table.set_column(index, table.schema.field(index), pa.array(texts)), path)
    report = diff(*both.paths, by="metadata.task.name,role")
    n_tokens = {row.group: row.n_tokens for row in report.groups}
    users = [sum(4 for i in range(1, 9) if i % 2 == odd) for odd in (0, 1)]
    assert (n_tokens["a", "user"], n_tokens["b", "user"], n_tokens[None, "user"]) == (*users, 4)
    assert report.total == diff(*both.paths).total
