"""Levels of tokens, and the sums of a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tokscore.analytics import diff_report as diff
from tokscore.analytics import stats_report as stats
from tokscore.analytics.comparison.diff_rows import row_of
from tokscore.analytics.report.collecting import BoundedHeap
from tokscore.analytics.report.conversation.messages import message_rows
from tokscore.analytics.report.conversation.metrics import level_limits, levels, metric_values, salience
from tokscore.analytics.report.grouping import PageGrouping, group_column, page_label
from tokscore.analytics.report.reading import ComparedDatasets, open_scores, read_batches
from tokscore.analytics.report.totals import TokenSample, Totals
from tokscore.dataset.choices import Metric


def test_levels_hold_the_shares_they_are_named_for() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1000.0))
    found = levels(values, level_limits(values))
    assert np.bincount(found).tolist() == [500, 300, 150, 40, 10]


def test_ties_stay_on_one_level_and_unknown_values_have_none() -> None:
    ranks = np.array([1.0] * 97 + [np.nan, 5.0, np.inf])
    found = levels(ranks, level_limits(ranks))
    assert (found[:97] == 0).all()
    assert found[97] == -1
    assert 0 < found[98] <= found[99]


def test_low_logprobs_and_both_signs_of_delta_stand_out() -> None:
    assert salience(Metric.LOGPROB, np.array([-3.0])) == 3
    assert salience(Metric.DELTA, np.array([-3.0, 3.0])).tolist() == [3, 3]


@pytest.mark.parametrize("by", [PageGrouping.ROLE, PageGrouping.SOURCE])
def test_the_page_has_the_numbers_of_diff(scores: Any, by: PageGrouping) -> None:
    totals = Totals(["log_ratio"])
    for sums, _ in ComparedDatasets(*scores, alpha=0.3).batches():
        totals.add(sums)
    report = diff(*scores, by=by.value, alpha=0.3)
    found = {label: row_of(None, group, [0.3]) for label, group in totals.groups(by)}
    assert len(found) >= 2
    for expected in report.groups:
        row = found[expected.group or "(no message)"]
        assert (row.points, row.intervals) == (expected.points, expected.intervals)
        assert (row.n_tokens, row.n_unscored) == (expected.n_tokens, expected.n_unscored)
        assert row.top1_agreement == expected.top1_agreement
    assert row_of(None, totals.total(), [0.3]).intervals == report.total.intervals


def test_sums_of_one_model_are_those_of_stats(scores: Any) -> None:
    totals = Totals()
    for sums, _ in read_batches(open_scores(scores.teacher)):
        totals.add(sums)
    row, total = stats(scores.teacher).total, totals.total()
    assert total.n_tokens == row.n_scored
    assert total.sums["logprob"] / total.n_tokens == pytest.approx(row.mean_logprob, rel=1e-12)
    assert total.sums["n_rank1"] / total.sums["n_ranked"] == row.rank1_share
    assert total.sums["entropy"] / total.sums["n_entropy"] == pytest.approx(row.mean_entropy, rel=1e-12)
    assert totals.histogram.sum() == row.n_scored


def test_every_token_is_in_one_group_with_the_right_label() -> None:
    table = pa.table(
        {
            "role": pa.array([None, "user", "user", "user"]),
            "source": ["template", "content", "content", "content"],
            "message_index": pa.array([-1, 0, 10, 130], pa.int32()),
            "position_in_message": pa.array([0, 0, 3, 9000], pa.int32()),
            "entropy": pa.array([None, 0.0, 0.7, 9.0], pa.float32()),
        }
    )
    found = {by: [page_label(key, by) for key in group_column(table, by).to_pylist()] for by in PageGrouping}
    assert found == {
        PageGrouping.ROLE: ["(no message)", "user", "user", "user"],
        PageGrouping.SOURCE: ["template", "content", "content", "content"],
        PageGrouping.POSITION: ["(no message)", "0", "2 to 3", "1024 and more"],
        PageGrouping.MESSAGE: ["(no message)", "0", "10 to 19", "100 and more"],
        PageGrouping.ENTROPY: ["(unknown)", "0 to 0.01", "0.5 to 1", "4 and more"],
    }


def test_a_row_for_each_message_also_for_empty_ones(scores: Any) -> None:
    conversation = next(iter(ComparedDatasets(*scores)))
    rows = message_rows(conversation)
    assert [(row.message_index, row.role, row.n_tokens) for row in rows] == [
        (-1, None, 1),
        (0, "user", 15),
        (1, "assistant", 34),
        (2, "user", 0),
    ]
    assert rows[2].delta == pytest.approx(np.mean(metric_values(conversation, Metric.DELTA)[16:]))
    assert rows[0].logprob is rows[3].logprob is None


def test_a_sample_of_few_values_is_all_of_them() -> None:
    sample = TokenSample()
    sample.add(np.array([3.0, np.nan, 1.0]))
    assert sorted(sample.values()) == [1, 3]


def test_a_sample_of_many_values_has_their_quantiles() -> None:
    sample = TokenSample()
    for block in np.split(np.arange(1_000_000.0), 20):
        sample.add(block)
    assert len(sample.values()) == 100_000
    # Standard error of a quantile of 100,000 draws from 1,000,000: below 0.0016 of the range.
    np.testing.assert_allclose(
        np.quantile(sample.values(), [0.1, 0.5, 0.99]) / 1e6, [0.1, 0.5, 0.99], atol=0.008
    )


def test_what_is_kept_has_the_highest_priority_and_fits() -> None:
    random = np.random.default_rng(0)
    priorities, sizes = random.random(200), random.integers(1, 50, 200)
    heap = BoundedHeap[int](300)
    made = []

    def offer(i: int) -> None:
        heap.offer(priorities[i], lambda: (made.append(i) or i, int(sizes[i])))

    for i in range(200):
        offer(i)
    kept = heap.kept()
    assert sum(sizes[kept]) <= 300
    assert [priorities[i] for i in kept] == sorted(priorities[kept], reverse=True)
    lost = [priorities[i] for i in range(200) if i not in kept]
    assert min(priorities[kept]) > max(lost)
    assert len(made) < 200


def test_an_item_larger_than_all_room_drops_nothing_else() -> None:
    heap = BoundedHeap[str](10)
    heap.offer(1.0, lambda: ("small", 9))
    heap.offer(2.0, lambda: ("huge", 11))
    assert heap.kept() == ["small"]
