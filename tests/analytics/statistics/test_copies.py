"""What many conversations have in common is one observation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics.comparison.confidence import by_conversation, limits_of_means
from tokscore.analytics.comparison.reduction import Clusters, Group
from tokscore.analytics.exact.moments import MEANS, PAIRS, moments_of
from tokscore.analytics.recorded.confidence import KEPT, mismatch_confidence
from tokscore.analytics.recorded.rows import mismatch_columns
from tokscore.analytics.statistics.bootstrap import Confidence
from tokscore.analytics.statistics.copies import copies_together
from tokscore.analytics.statistics.sketches import QuantileSketch
from tokscore.dataset.choices import RecordedAgainst


def clusters(sums: list[float], n_tokens: list[int], other: list[float] | None = None) -> Clusters:
    names = [(f"c{index:03}", 0) for index in range(len(sums))]
    columns = {"log_ratio": np.array(sums), "delta_p": np.array(sums if other is None else other)}
    return Clusters(names, columns, np.array(n_tokens))


def limits(found: Clusters) -> tuple[float | None, float | None, int]:
    sums, n_tokens = by_conversation(found)
    each = dict(limits_of_means(sums, n_tokens, 999, {}))["log_ratio"]
    return each.lower, each.upper, each.n_conversations


def test_a_prompt_that_all_share_sets_no_limits() -> None:
    assert limits(clusters([3.5] * 40, [7] * 40)) == (None, None, 1)


def test_samples_of_one_prompt_do_not_narrow_the_limits() -> None:
    rng = np.random.default_rng(0)
    once = clusters(rng.normal(1.0, 2.0, 40).tolist(), rng.integers(5, 30, 40).tolist())
    eight = clusters(np.repeat(once.sums["log_ratio"], 8).tolist(), np.repeat(once.n_tokens, 8).tolist())
    assert limits(eight) == pytest.approx(limits(once), rel=1e-9)


def test_means_stay_and_order_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    sums = {"a": rng.choice([0.0, 1.5, 2.5], 200), "b": rng.choice([-1.0, np.inf, 4.0], 200)}
    n_tokens = rng.integers(1, 4, 200)
    together, n = copies_together(sums, n_tokens)
    assert len(n) == len({*zip(sums["a"], sums["b"], n_tokens.tolist(), strict=True)})
    assert n.sum() == n_tokens.sum()
    assert together["a"].sum() == pytest.approx(sums["a"].sum())
    turned = rng.permutation(200)
    again, m = copies_together({name: column[turned] for name, column in sums.items()}, n_tokens[turned])
    pairs = [
        sorted(zip(*found.values(), count.tolist(), strict=True))
        for found, count in ((together, n), (again, m))
    ]
    assert pairs[0] == pairs[1]


def test_what_differs_in_one_number_or_says_nothing_is_no_copy() -> None:
    assert limits(clusters([1.0, 1.0, 1.0], [4, 4, 4], [0.1, 0.2, 0.3]))[2] == 3
    assert limits(clusters([0.0] * 3, [4] * 3)) == (0.0, 0.0, 3)


def test_errors_over_conversations_count_copies_once_and_the_report_all() -> None:
    rng = np.random.default_rng(2)
    columns, n_tokens = rng.normal(1.0, 2.0, (len(MEANS), 20)), rng.integers(5, 30, 20)

    def errors(times: int) -> list[float]:
        every = dict(zip(MEANS, np.repeat(columns, times, axis=1), strict=True))
        n = np.repeat(n_tokens, times)
        sums = {name: float(column.sum()) for name, column in every.items()}
        sums |= {f"{one} * {other}": 1.0 for one, other in PAIRS}
        found = Clusters([(f"c{index:03}", 0) for index in range(len(n))], every, n)
        moments = moments_of(Group(len(n), int(n.sum()), 0, sums, QuantileSketch(), found))
        assert moments.n_conversations == len(n)
        return [*moments.over_conversations.values()]

    assert errors(5) == pytest.approx(errors(1))


def recorded_limits(
    recorded: NDArray[np.float64], other: NDArray[np.float64], *, is_sampled: bool
) -> Confidence:
    """Limits of the log-ratio where each conversation has one token."""
    sampled = np.full(len(recorded), is_sampled)
    columns = mismatch_columns(recorded, other, sampled)
    names = [(f"c{index:04}", 0) for index in range(len(recorded))]
    found = Clusters(names, {name: columns[name] for name in KEPT}, np.ones(len(recorded), np.int64))
    return dict(mismatch_confidence(found, RecordedAgainst.TRAINER))["log_ratio"]


def test_equal_answers_that_were_sampled_are_observations() -> None:
    rng = np.random.default_rng(3)
    recorded, other = np.zeros((2, 1000))  # sure of 970 of the answers, of one token each
    recorded[970:] = rng.normal(-2.0, 0.5, 30)
    other[970:] = recorded[970:] + rng.normal(0.1, 0.3, 30)
    gaps = other - recorded
    error = gaps.std(ddof=1) / np.sqrt(1000)
    drawn = recorded_limits(recorded, other, is_sampled=True)
    assert drawn.n_conversations == 1000
    assert drawn.lower is not None
    assert drawn.upper is not None
    assert drawn.upper - drawn.lower == pytest.approx(2 * 1.96 * error, rel=0.25)
    assert recorded_limits(recorded, other, is_sampled=False).n_conversations == 31
