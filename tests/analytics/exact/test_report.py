"""Means of the exact table by group."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")
from tests.analytics.exact.pairs import ALPHAS, N_CONVERSATIONS, Pair
from tokscore.analytics import diff_report
from tokscore.analytics.comparison.confidence import confidence_of_means
from tokscore.analytics.comparison.reduction import Clusters
from tokscore.analytics.exact.report import ExactReport, exact_report


@pytest.fixture(scope="module")
def folder(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of a finished run."""
    folder = tmp_path_factory.mktemp("exact") / "parts"
    exact_report(pair.run(folder))
    return folder


def report_of(pair: Pair, folder: Path, by: str) -> ExactReport:
    """From the parts alone: no model is started."""
    return exact_report(pair.run(folder, start=None, columns=by.split(",")), by=by)


@pytest.mark.parametrize("by", ["role", "message_index,is_sampled", "metadata.topic", "conversation_id"])
def test_means_are_those_of_the_rows(pair: Pair, folder: Path, by: str) -> None:
    columns = [name for name in by.split(",") if not name.startswith("metadata.")]
    report = exact_report(pair.run(folder, start=None, columns=columns), by=by)
    rows = pl.read_parquet(folder)
    scores = pq.read_table(pair.teacher / "scores").num_rows
    assert report.total.n_tokens == len(rows) == scores - N_CONVERSATIONS
    topics = pl.when(pl.col("conversation_id").str.slice(1).cast(int) < 4)
    rows = rows.with_columns(
        topics.then(pl.lit("greeting")).otherwise(pl.lit("weather")).alias("metadata.topic")
    )
    for group in report.groups:
        key = group.group if isinstance(group.group, tuple) else (group.group,)
        same = [
            pl.col(name).eq_missing(pl.lit(value)) for name, value in zip(by.split(","), key, strict=True)
        ]
        mine = rows.filter(*same)
        assert group.n_tokens == len(mine)
        for name in (
            "kl_teacher_student",
            "gjs_0.1",
            "skew_kl_0.9",
            "entropy_student",
            "delta_p",
            "log_ratio",
        ):
            expected = mine[name].mean()
            assert group.values[name] == (None if expected is None else pytest.approx(expected, abs=1e-12))
        assert group.top1_agreement == (pytest.approx(mine["same_top"].mean()) if len(mine) else None)
    assert sum(group.n_tokens for group in report.groups) == len(rows)


def test_means_lie_in_the_intervals_of_the_lists(pair: Pair, folder: Path) -> None:
    exact = report_of(pair, folder, "role")
    for group, bounds in zip(
        exact.groups, diff_report(pair.teacher, pair.student, alpha=ALPHAS).groups, strict=True
    ):
        assert group.group == bounds.group
        for name, interval in bounds.intervals.items():
            value = group.values[name]
            assert value is not None
            assert interval.lower is not None
            assert interval.lower <= value
            assert interval.upper is None or value <= interval.upper
        assert group.top1_agreement == bounds.top1_agreement


def test_confidence_limits_resample_conversations(pair: Pair, folder: Path) -> None:
    report = report_of(pair, folder, "role")
    rows = pl.read_parquet(folder)
    sums = rows.group_by("conversation_id").agg(pl.len().cast(pl.Int64), pl.col("total_variation").sum())
    sums = sums.sort("conversation_id")
    names = [(name, 0) for name in sums["conversation_id"].to_list()]
    clusters = Clusters(
        names, {"total_variation": sums["total_variation"].to_numpy()}, sums["len"].to_numpy()
    )
    [expected] = confidence_of_means(clusters, [0.1], 999)
    total = {each.name: each for each in report.total.confidence}
    assert total["total_variation"][1:3] == pytest.approx(expected[1:3], rel=1e-12)
    assert total["gjs_0.1"].is_rough
    gaps = ["log_ratio", "delta_p", "kl_teacher_student", "kl_student_teacher", "total_variation"]
    assert list(total) == [*gaps, *(f"{name}_{alpha:g}" for alpha in ALPHAS for name in ("gjs", "skew_kl"))]


def test_what_was_left_out_has_no_rows(pair: Pair, tmp_path: Path) -> None:
    report = exact_report(pair.run(tmp_path, without=[("c0", 0), ("c7", 0)]))
    rows = pl.read_parquet(tmp_path)
    assert report.total.n_tokens == len(rows)
    names = [name for name, _ in groupby(rows["conversation_id"].to_list())]
    assert names == [f"c{i}" for i in range(N_CONVERSATIONS) if i not in (0, 7)]


def test_columns_say_what_they_are(folder: Path) -> None:
    schema = pq.read_schema(next(folder.glob("*.parquet")))
    assert all(field.metadata[b"description"] for field in schema)
    assert schema.field("skew_kl_0.1").metadata[b"unit"] == b"nats"
    meaning = schema.field("kl_teacher_student").metadata[b"description"]
    assert meaning == b"KL(teacher || student); inf where the second model rules out a token."
    assert np.all([not field.nullable for field in schema if field.name not in ("role", "is_sampled")])
