"""Confidence limits by conversation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics.statistics import bootstrap
from tokscore.analytics.statistics.bootstrap import Confidence, clustered_confidence
from tokscore.dataset.errors import InputError, UsageError

FloatArray = NDArray[np.float64]


class Clustered(NamedTuple):
    sums: FloatArray
    n_tokens: NDArray[np.int64]


class Population(NamedTuple):
    """Conversations of lognormal length, whose tokens share a lognormal level and vary around it.

    `together` is the correlation of the logs of length and level; the mean per token is
    exp(log_size * log_level * together).
    """

    log_size: float
    log_level: float
    together: float

    def draw(self, n: int, rng: np.random.Generator) -> Clustered:
        z = rng.normal(size=n)
        level = self.together * z + math.sqrt(1 - self.together**2) * rng.normal(size=n)
        # Poisson, so that some conversations have no such token.
        n_tokens = rng.poisson(8 * np.exp(self.log_size * z))
        level = np.exp(self.log_level * level - self.log_level**2 / 2)
        noise = np.where(n_tokens > 0, rng.gamma(np.maximum(n_tokens, 1)), 0.0)
        return Clustered(level * noise, n_tokens)

    @property
    def mean(self) -> float:
        return math.exp(self.log_size * self.log_level * self.together)


def confidence(sample: Clustered, **options: float) -> Confidence:
    return clustered_confidence(["kl"], sample.sums[None], sample.n_tokens, **options)[0]  # type: ignore[arg-type]


SKEWED = Population(0.7, 0.6, 0.3).draw(300, np.random.default_rng(11))


@pytest.mark.slow
@pytest.mark.parametrize(
    "population",
    [
        Population(0.5, 0.5, 0.0),
        Population(0.7, 0.7, 0.3),
        Population(1.0, 0.7, 0.0),
    ],
)
def test_limits_contain_the_mean_as_often_as_they_say(population: Population) -> None:
    rng, n_runs = np.random.default_rng(3), 1000
    n_below = n_above = 0
    for _ in range(n_runs):
        limits = confidence(population.draw(200, rng))
        assert limits.lower is not None
        assert limits.upper is not None
        n_below += population.mean < limits.lower
        n_above += population.mean > limits.upper
    coverage = 1 - (n_below + n_above) / n_runs
    print(f"{population}: {coverage:.2%}, below {n_below / n_runs:.2%}, above {n_above / n_runs:.2%}")
    assert 0.92 <= coverage <= 0.97


def test_limits_equal_a_slow_bootstrap_of_the_same_weights() -> None:
    held = SKEWED.n_tokens > 0
    mean_of_all = math.fsum(SKEWED.sums) / SKEWED.n_tokens.sum()
    drawn = bootstrap._clusters(SKEWED.sums[held], mean_of_all, SKEWED.n_tokens[held].astype(np.float64))
    n_tokens = drawn.sizes
    sums = drawn.deviations + mean_of_all * n_tokens
    np.testing.assert_allclose(np.sort(sums), np.sort(SKEWED.sums[held]), rtol=1e-13)
    n = len(sums)

    def mean_and_error(weights: NDArray[np.int64]) -> tuple[float, float]:
        mean = float((weights * sums).sum() / (weights * n_tokens).sum())
        deviations = sums - mean * n_tokens
        variance = (weights * deviations**2).sum() * n / (n - 1)
        return mean, math.sqrt(variance) / float((weights * n_tokens).sum())

    mean, error = mean_and_error(np.ones(n, np.int64))
    ratios = []
    for replicate in range(999):
        block, row = divmod(replicate, 256)
        again, error_again = mean_and_error(bootstrap._weights(0, block, 512)[row, :n].astype(np.int64))
        ratios.append((again - mean) / error_again)
    ratios.sort()
    limits = confidence(SKEWED)
    assert limits.lower == pytest.approx(mean - error * ratios[974], rel=1e-12)
    assert limits.upper == pytest.approx(mean - error * ratios[24], rel=1e-12)
    assert limits.p_value == 0.002


def test_order_empty_conversations_and_other_statistics_change_nothing() -> None:
    expected = confidence(SKEWED)
    order = np.random.default_rng(0).permutation(len(SKEWED.sums))
    assert confidence(Clustered(SKEWED.sums[order], SKEWED.n_tokens[order])) == expected
    held = SKEWED.n_tokens > 0
    assert not held.all()
    assert confidence(Clustered(SKEWED.sums[held], SKEWED.n_tokens[held])) == expected
    both = np.stack([SKEWED.sums, SKEWED.n_tokens * np.arange(len(order))])
    assert clustered_confidence(["kl", "x"], both, SKEWED.n_tokens)[0] == pytest.approx(expected, rel=1e-12)


def test_limits_lean_to_the_long_tail() -> None:
    limits = confidence(SKEWED)
    mean = SKEWED.sums.sum() / SKEWED.n_tokens.sum()
    assert limits.lower is not None
    assert limits.upper is not None
    assert limits.upper - mean > 1.1 * (mean - limits.lower)


def test_the_p_value_is_at_most_5_percent_exactly_where_0_is_outside_the_limits() -> None:
    mean = SKEWED.sums.sum() / SKEWED.n_tokens.sum()
    for shift in np.linspace(0.7, 1.3, 61):
        limits = confidence(Clustered(SKEWED.sums - shift * mean * SKEWED.n_tokens, SKEWED.n_tokens))
        assert limits.lower is not None
        assert limits.upper is not None
        assert limits.p_value is not None
        assert (limits.p_value <= 0.05) == (limits.lower > 0 or limits.upper < 0)


def test_p_values_without_a_gap_are_uniform() -> None:
    rng = np.random.default_rng(8)
    p_values = []
    for _ in range(200):
        n_tokens = rng.integers(1, 30, 60)
        sample = Clustered(rng.normal(size=60) * n_tokens, n_tokens)
        p_values.append(confidence(sample, n_replicates=199).p_value)
    shares = np.mean(np.array(p_values)[:, None] <= np.array([0.05, 0.25, 0.5, 0.75]), axis=0)
    np.testing.assert_allclose(shares, [0.05, 0.25, 0.5, 0.75], atol=0.08)


def test_means_known_as_intervals_take_the_lower_limit_of_one_and_the_upper_of_the_other() -> None:
    low = np.stack([SKEWED.sums, SKEWED.sums])
    high = low + np.outer([0.5, 0.0], SKEWED.n_tokens)
    wide, point = clustered_confidence(["gjs", "log_ratio"], low, SKEWED.n_tokens, high)
    assert point.upper is not None
    assert point.lower == wide.lower == clustered_confidence(["gjs"], low[:1], SKEWED.n_tokens)[0].lower
    assert wide.upper == pytest.approx(point.upper + 0.5, rel=1e-12)
    # An interval that contains 0 is no gap, however many conversations say so.
    around = clustered_confidence(
        ["x"], low[:1] * 0 - SKEWED.n_tokens, SKEWED.n_tokens, low[:1] + SKEWED.n_tokens
    )
    assert around[0].p_value == 1.0


def test_a_token_without_an_upper_limit_leaves_the_mean_without_one() -> None:
    high = SKEWED.sums.copy()
    high[np.argmax(SKEWED.n_tokens)] = np.inf
    limits = clustered_confidence(["kl"], SKEWED.sums[None], SKEWED.n_tokens, high[None])[0]
    assert limits.upper is None
    assert limits.lower == confidence(SKEWED).lower
    assert limits.p_value == confidence(SKEWED).p_value


@pytest.mark.parametrize("mean", [0.0, 0.1, -3.7])
def test_conversations_that_agree_leave_no_doubt(mean: float) -> None:
    n_tokens = np.random.default_rng(0).integers(1, 500, 40)
    limits = confidence(Clustered(mean * n_tokens, n_tokens))
    assert limits.lower == limits.upper == pytest.approx(mean, rel=1e-15)
    assert limits.p_value == (1.0 if mean == 0 else 0.002)


@pytest.mark.parametrize("n_tokens", [[], [0, 0, 0], [7], [0, 7, 0]])
def test_fewer_than_two_conversations_have_no_limits(n_tokens: list[int]) -> None:
    counts = np.array(n_tokens, np.int64)
    limits = confidence(Clustered(0.5 * counts, counts))
    assert limits == Confidence(None, None, None, int((counts > 0).sum()))
    assert limits.is_rough


def test_a_handful_of_conversations_sets_no_limit_rather_than_a_narrow_one() -> None:
    limits = confidence(Clustered(np.array([1.0, 2.0, 4.0]), np.array([3, 3, 3])))
    assert limits[:2] == (None, None)
    assert limits.p_value is not None
    assert limits.p_value > 0.05


def test_two_conversations_that_differ_among_many_alike_set_no_limit() -> None:
    # 13 % of the replicates draw neither and say nothing.
    limits = confidence(Clustered(np.concatenate([[4.0, 2.0], np.full(38, 3.0)]), np.ones(40, np.int64)))
    assert limits[:2] == (None, None)


@pytest.mark.parametrize(("n", "is_rough"), [(29, True), (30, False)])
def test_limits_from_fewer_than_30_conversations_are_rough(n: int, is_rough: bool) -> None:
    sample = Clustered(np.random.default_rng(n).normal(5, 1, n), np.ones(n, np.int64))
    limits = confidence(sample)
    assert limits.is_rough == is_rough
    assert limits.lower is not None


@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_the_unit_of_the_sums_does_not_matter(scale: float) -> None:
    limits, scaled = confidence(SKEWED), confidence(Clustered(SKEWED.sums * scale, SKEWED.n_tokens))
    assert limits.lower is not None
    assert limits.upper is not None
    assert scaled.lower == pytest.approx(limits.lower * scale, rel=1e-12)
    assert scaled.upper == pytest.approx(limits.upper * scale, rel=1e-12)


def test_bags_of_conversations_give_the_limits_of_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Population(0.7, 0.5, 0.3).draw(3000, np.random.default_rng(1))
    mean = sample.sums.sum() / sample.n_tokens.sum()
    whole = confidence(sample)
    monkeypatch.setattr(bootstrap, "MAX_CLUSTERS", 1000)
    bagged = confidence(sample)
    assert bagged != whole
    for limit, expected in zip(bagged[:2], whole[:2], strict=True):
        assert limit is not None
        assert expected is not None
        # 999 replicates leave 5 % or so in either.
        assert limit - mean == pytest.approx(expected - mean, rel=0.12)
    order = np.random.default_rng(0).permutation(3000)
    assert confidence(Clustered(sample.sums[order], sample.n_tokens[order])) == bagged


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_a_sum_that_is_no_number_is_named(value: float) -> None:
    sums = np.array([[1.0, 2.0, 3.0], [1.0, value, 3.0]])
    with pytest.raises(InputError, match=r"log_ratio, conversation 1: the sum is "):
        clustered_confidence(["kl", "log_ratio"], sums, np.array([1, 1, 1]))


def test_sums_that_contradict_each_other_are_named() -> None:
    ones = np.ones((1, 2))
    with pytest.raises(InputError, match="gjs, conversation 1: the upper sum 0 is below the lower one, 1;"):
        clustered_confidence(["gjs"], ones, np.array([1, 1]), np.array([[1.0, 0.0]]))
    with pytest.raises(InputError, match="gjs, conversation 0: the sum is -inf"):
        clustered_confidence(["gjs"], ones, np.array([1, 1]), np.array([[-np.inf, 1.0]]))
    with pytest.raises(InputError, match="kl, conversation 1: the sum of no tokens is 1; expected 0"):
        clustered_confidence(["kl"], ones, np.array([1, 0]))
    with pytest.raises(InputError, match="conversation 1 has -1 tokens"):
        clustered_confidence(["kl"], ones, np.array([1, -1]))
    with pytest.raises(InputError, match=r"sums have shape \(1, 2\); .* here \(1, 3\)"):
        clustered_confidence(["kl"], ones, np.array([1, 1, 1]))


def test_levels_that_the_replicates_cannot_tell_are_refused() -> None:
    with pytest.raises(UsageError, match=r"99 replicates; level 0\.99 needs at least 199"):
        confidence(SKEWED, level=0.99, n_replicates=99)
    assert confidence(SKEWED, level=0.99, n_replicates=199).lower is not None
    with pytest.raises(UsageError, match="level is 95"):
        confidence(SKEWED, level=95)
