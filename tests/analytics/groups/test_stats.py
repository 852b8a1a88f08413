"""Counts and means of one dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tokscore.analytics import GroupBy
from tokscore.analytics import stats_report as stats
from tokscore.dataset.errors import InputError
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
ROLES = [("system", 0), ("user", 4), ("assistant", 6), ("user", 2)]


@pytest.fixture
def conversations(conversation: Make) -> list[Any]:
    return [conversation(f"c{index}", ROLES[: 2 + index % 3], seed=index) for index in range(7)]


def test_means_match_a_direct_sum(conversations: list[Any], write_dataset: Make) -> None:
    total = stats(write_dataset(conversations)).total
    realised = (
        np.concatenate([c.logprobs[np.arange(len(c.token_ids)), c.token_ids][1:] for c in conversations])
        .astype(np.float32)
        .astype(np.float64)
    )
    assert total.n_scored == len(realised)
    assert total.sum_logprob == pytest.approx(math.fsum(realised), abs=1e-12)
    assert total.mean_logprob == pytest.approx(realised.mean(), abs=1e-12)
    assert total.perplexity == pytest.approx(np.exp(-realised.mean()), rel=1e-12)
    entropy = np.concatenate([-(np.exp(c.logprobs) * c.logprobs).sum(axis=1)[1:] for c in conversations])
    assert total.mean_entropy == pytest.approx(entropy.mean(), abs=1e-6)
    best = np.concatenate([c.logprobs.argmax(axis=1)[1:] == c.token_ids[1:] for c in conversations])
    assert total.rank1_share == best.mean()


def test_counts_of_a_token_dataset(conversations: list[Any], write_dataset: Make) -> None:
    report = stats(write_dataset(conversations, kind=DatasetKind.TOKENS, n_failed=2))
    by_role = {row.group: row for row in report.groups}
    assert by_role["assistant"].n_tokens == by_role["assistant"].n_sampled == 6 * 4
    assert by_role["user"].n_messages == 7 + 2
    assert by_role["user"].tokens_per_message == pytest.approx((7 * 4 + 2 * 2) / 9)
    assert (by_role[None].n_tokens, by_role[None].n_messages) == (7, None)
    assert (report.n_conversations, report.n_errors, report.n_unscored) == (7, 2, None)
    assert report.total.mean_logprob is None


def test_coverage_of_a_score_dataset(conversations: list[Any], write_dataset: Make) -> None:
    report = stats(write_dataset(conversations))
    assert report.n_unscored == 7
    assert report.total.n_scored == report.total.n_tokens - 7


def test_parts_and_their_order_change_no_number(conversations: list[Any], write_dataset: Make) -> None:
    whole = stats(write_dataset(conversations))
    assert whole == stats(write_dataset(conversations, n_parts=3))
    assert whole == stats(write_dataset(conversations[::-1], n_parts=2))


def test_a_short_and_a_long_sequence_give_the_same_in_one_part_and_in_two(
    conversation: Make, write_dataset: Make
) -> None:
    ours = [conversation("short", [], seed=1), conversation("long", [("user", 98)], seed=2)]
    assert [len(scored.token_ids) for scored in ours] == [1, 99]
    assert stats(write_dataset(ours)) == stats(write_dataset(ours, n_parts=2))


def test_a_role_without_tokens_has_count_0_and_no_mean(conversations: list[Any], write_dataset: Make) -> None:
    (system,) = [row for row in stats(write_dataset(conversations)).groups if row.group == "system"]
    assert (system.n_tokens, system.n_messages, system.tokens_per_message) == (0, 7, 0.0)
    assert (system.mean_logprob, system.perplexity, system.rank1_share) == (None, None, None)


def test_an_impossible_token_is_not_hidden(conversations: list[Any], write_dataset: Make) -> None:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return scores | {
            "logprob": pa.array([None, -math.inf, *scores["logprob"].to_pylist()[2:]], pa.float32())
        }

    total = stats(write_dataset(conversations, columns=spoil)).total
    assert (total.mean_logprob, total.perplexity) == (-math.inf, math.inf)
    assert json.loads(json.dumps(total.to_dict(), allow_nan=False))["mean_logprob"] is None


def test_a_nan_is_refused(conversations: list[Any], write_dataset: Make) -> None:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return scores | {"logprob": pa.array([math.nan] * len(scores["logprob"]), pa.float32())}

    with pytest.raises(InputError, match=r"conversation 'c0', position 0: the logprob is nan; .*such values"):
        stats(write_dataset(conversations, columns=spoil))


def test_an_engine_without_entropy_gives_none(conversations: list[Any], write_dataset: Make) -> None:
    def drop(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return scores | {"entropy": pa.nulls(len(scores["entropy"]), pa.float32())}

    assert stats(write_dataset(conversations, columns=drop)).total.mean_entropy is None


@pytest.mark.parametrize("by", list(GroupBy))
def test_every_grouping_has_the_same_total(
    conversations: list[Any], write_dataset: Make, by: GroupBy
) -> None:
    path = write_dataset(conversations)
    report, other = stats(path, by=by).total, stats(path).total
    assert (report.n_tokens, report.sum_logprob, report.mean_entropy) == (
        other.n_tokens,
        other.sum_logprob,
        other.mean_entropy,
    )


def test_the_report_is_json(conversations: list[Any], write_dataset: Make) -> None:
    report = json.loads(json.dumps(stats(write_dataset(conversations)).to_dict(), allow_nan=False))
    assert [row["group"] for row in report["groups"]] == ["assistant", "system", "user", None]


def test_percentiles_are_within_their_error(conversations: list[Any], write_dataset: Make) -> None:
    report = stats(write_dataset(conversations), by="position")
    realised = [c.logprobs[np.arange(len(c.token_ids)), c.token_ids][1:] for c in conversations]
    exact = np.sort(np.concatenate(realised).astype(np.float32))
    found = report.total.logprob_percentiles
    assert found is not None
    for name, value in found._asdict().items():
        rank = math.ceil(int(name[1:]) / 100 * len(exact))
        assert value == pytest.approx(exact[rank - 1], rel=1e-3)
    first = np.sort([values[0] for values in realised])
    percentiles = {row.group: row.logprob_percentiles for row in report.groups}
    assert percentiles[0] is None
    assert percentiles[1] is not None
    assert percentiles[1].p50 == pytest.approx(first[3], rel=1e-3)


@pytest.mark.parametrize(
    "by", ["role,message_index", "conversation_id,is_sampled", "source,position,role", "branch,role"]
)
def test_groups_of_several_columns_match_a_plain_aggregation(
    conversations: list[Any], write_dataset: Make, by: str
) -> None:
    dataset = write_dataset(conversations, n_parts=2)
    names = by.split(",")
    rows = pl.read_parquet(dataset / "scores" / "*.parquet").group_by(names)
    expected = rows.agg(pl.len(), pl.col("logprob").cast(pl.Float64).mean(), (pl.col("rank") == 1).sum())
    by_key = {tuple(row[: len(names)]): row[len(names) :] for row in expected.iter_rows()}
    groups = {row.group: row for row in stats(dataset, by=by).groups if row.n_tokens}
    assert set(groups) == set(by_key)
    for key, (n_tokens, mean_logprob, n_rank1) in by_key.items():
        assert groups[key].n_tokens == n_tokens
        assert groups[key].mean_logprob == pytest.approx(mean_logprob, abs=1e-12)
        assert (groups[key].rank1_share or 0) * (groups[key].n_scored or 0) == pytest.approx(n_rank1)


def test_coverage_says_why_tokens_have_no_logprob(conversations: list[Any], write_dataset: Make) -> None:
    def only_later(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return scores | {"logprob": pa.array([None, None, *scores["logprob"].to_pylist()[2:]], pa.float32())}

    dataset = write_dataset(conversations, columns=only_later, settings={"score": "content"}, n_failed=1)
    coverage = stats(dataset).coverage
    assert (coverage.n_conversations, coverage.n_failed, coverage.asked) == (7, 1, "content")
    assert (coverage.n_without_context, coverage.n_not_asked) == (7, 7)
    assert coverage.n_unscored == 14


def test_sizes_of_the_messages_of_a_role(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation(f"c{n}", [("user", n), ("assistant", 2)], seed=n) for n in range(1, 21)]
    (assistant, user) = [row for row in stats(write_dataset(ours)).groups if row.group is not None]
    found = (user.tokens_per_message_min, user.tokens_per_message_p95, user.tokens_per_message_max)
    assert (*found, user.tokens_per_message) == (1, 19, 20, 10.5)
    assert (assistant.tokens_per_message_min, assistant.tokens_per_message_p95) == (2, 2)
