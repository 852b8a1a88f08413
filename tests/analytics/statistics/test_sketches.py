"""Percentiles in flat memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics.statistics.sketches import ABSOLUTE_ERROR, RELATIVE_ERROR, QuantileSketch
from tokscore.dataset.errors import InputError, UsageError

SHARES = (0.0, 0.001, 0.01, 0.05, 0.07, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0)


def sketch(*parts: NDArray[np.float64]) -> QuantileSketch:
    made = QuantileSketch()
    for part in parts:
        made.add(part)
    return made


def mixed(n: int) -> NDArray[np.float64]:
    """Log-ratios as they come: heavy tails, many zeros, tiny noise."""
    rng = np.random.default_rng(n)
    return np.concatenate(
        [rng.standard_t(1, n), np.zeros(n // 3), rng.normal(0, 1e-10, n // 5), [1e300, -1e-300]]
    )


@pytest.mark.parametrize("n", [1, 10, 100, 100_000])
def test_quantiles_are_within_the_stated_error(n: int) -> None:
    values = mixed(n)
    made = sketch(values)
    for share in SHARES:
        # The rank in whole numbers: shares are thousandths.
        rank = max(1, -(-round(share * 1000) * len(values) // 1000))
        exact = np.sort(values)[rank - 1]
        found = made.quantile(share)
        assert found is not None
        assert abs(found - exact) <= max(RELATIVE_ERROR * abs(exact), ABSOLUTE_ERROR)
    assert made.quantile(0.0) == values.min()
    assert made.quantile(1.0) == values.max()


def test_order_and_division_change_nothing() -> None:
    values = mixed(100_000)
    whole = sketch(values)
    shuffled = np.random.default_rng(0).permutation(values)
    left, right = (
        sketch(*np.array_split(shuffled[:40_000], 7)),
        sketch(*np.array_split(shuffled[40_000:], 900)),
    )
    right.merge(left)
    left.merge(sketch())
    assert right.n == whole.n == len(values)
    assert left.n == 40_000
    assert [right.quantile(share) for share in SHARES] == [whole.quantile(share) for share in SHARES]


def test_memory_does_not_grow_with_the_values() -> None:
    made, rng = QuantileSketch(), np.random.default_rng(0)
    for _ in range(20):
        made.add(rng.exponential(2, 100_000) * rng.choice([-1, 1], 100_000))
    # Two signs, 2**-18 to 2**5, 512 bins each.
    assert len(made._keys) < 2 * 23 * 512
    assert sum(map(len, made._pending)) < 65_536


def test_values_of_one_kind_are_exact() -> None:
    assert sketch(np.zeros(50)).quantile(0.5) == 0.0
    assert sketch(np.full(50, -0.3)).quantile(0.5) == -0.3
    assert sketch(np.array([-np.inf, -np.inf, -2.0, np.inf])).quantile(0.5) == -math.inf
    assert sketch(np.array([-2.0, np.inf, np.inf, np.inf])).quantile(0.5) == math.inf
    assert sketch().quantile(0.5) is None


def test_nan_and_shares_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="value 1 of 3 is NaN"):
        sketch(np.array([1.0, np.nan, 2.0]))
    with pytest.raises(UsageError, match=r"share of a quantile is 95"):
        sketch(np.ones(2)).quantile(95)
