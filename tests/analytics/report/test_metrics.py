"""Levels of tokens, and the sums of a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokscore.analytics import diff_report as diff
from tokscore.analytics import stats_report as stats
from tokscore.analytics.report.grouping import Grouping, groups_of
from tokscore.analytics.report.keeping import Keeping
from tokscore.analytics.report.messages import message_rows
from tokscore.analytics.report.metrics import level_limits, levels, metric_values, salience
from tokscore.analytics.report.reading import ComparedDatasets, open_scores, read_scored
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


@pytest.mark.parametrize(("by", "name"), [(Grouping.ROLE, "role"), (Grouping.SOURCE, "source")])
def test_sums_by_group_are_those_of_diff(scores: Any, by: Grouping, name: str) -> None:
    totals = Totals()
    for conversation in ComparedDatasets(*scores):
        totals.add(conversation)
    report = diff(*scores, by=name)
    found = dict(totals.rows(by)) | {"(all)": totals.total()}
    expected = {row.group or "(no message)": row for row in report.groups} | {"(all)": report.total}
    assert len(found) >= 3
    for label, sums in found.items():
        row = expected[label]
        n = row.n_tokens
        assert sums["n_counted"] == n
        assert sums["n_tokens"] == n + row.n_unscored
        if n:
            assert sums["delta"] / n == pytest.approx(row.log_ratio, rel=1e-12)
            assert sums["gjs_lower"] / n == pytest.approx(row.gjs.lower, rel=1e-12)
            assert sums["gjs_upper"] / n == pytest.approx(row.gjs.upper, rel=1e-12)
            assert sums["kl_teacher_student_lower"] / n == pytest.approx(row.kl_teacher_student.lower)
            assert sums["kl_student_teacher_n_unbounded"] == row.kl_student_teacher.n_unbounded
            assert sums["unresolved"] / n == pytest.approx(row.unresolved, rel=1e-12)
            assert sums["n_agreeing"] / sums["n_top1"] == row.top1_agreement


def test_sums_of_one_model_are_those_of_stats(scores: Any) -> None:
    totals = Totals()
    for conversation in read_scored(open_scores(scores.teacher)):
        totals.add(conversation)
    row, sums = stats(scores.teacher).total, totals.total()
    assert sums["n_counted"] == row.n_scored
    assert sums["logprob"] / sums["n_counted"] == pytest.approx(row.mean_logprob, rel=1e-12)
    assert sums["n_rank1"] / sums["n_ranked"] == row.rank1_share
    assert sums["entropy"] / sums["n_entropy"] == pytest.approx(row.mean_entropy, rel=1e-12)
    assert totals.histogram.sum() == row.n_scored


def test_every_token_is_in_one_group_with_the_right_label(scores: Any) -> None:
    conversation = next(iter(read_scored(open_scores(scores.teacher))))
    for by in Grouping:
        groups = groups_of(conversation, by)
        assert groups.codes.min() >= 0
        assert groups.codes.max() < len(groups.labels)
    position = groups_of(conversation, Grouping.POSITION)
    labels = [position.labels[code][1] for code in position.codes.tolist()]
    assert labels[0] == "(no message)"
    assert labels[1:10] == ["0", "1", *["2 to 3"] * 2, *["4 to 7"] * 4, "8 to 15"]


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
    keeping = Keeping[int](300)
    made = []

    def offer(i: int) -> None:
        keeping.offer(priorities[i], lambda: (made.append(i) or i, int(sizes[i])))

    for i in range(200):
        offer(i)
    kept = keeping.kept()
    assert sum(sizes[kept]) <= 300
    assert [priorities[i] for i in kept] == sorted(priorities[kept], reverse=True)
    lost = [priorities[i] for i in range(200) if i not in kept]
    assert min(priorities[kept]) > max(lost)
    assert len(made) < 200


def test_an_item_larger_than_all_room_drops_nothing_else() -> None:
    keeping = Keeping[str](10)
    keeping.offer(1.0, lambda: ("small", 9))
    keeping.offer(2.0, lambda: ("huge", 11))
    assert keeping.kept() == ["small"]
