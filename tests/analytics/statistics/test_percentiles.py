from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.statistics.percentiles import percentiles

SHARES = (1.0, 0.999, 0.95, 0.5, 0.25, 0.07, 0.0)


@given(
    st.lists(
        st.floats(-1e6, 1e6, allow_subnormal=True) | st.sampled_from([0.0, -0.0, 1e-300, 1.0]), min_size=1
    ),
    st.lists(st.integers(0, 50), max_size=5),
)
def test_they_are_those_of_numpy_however_the_values_are_divided(values: list[float], cuts: list[int]) -> None:
    array = np.array(values)
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    pieces = [array[start:stop] for start, stop in pairwise(bounds)]
    expected = np.quantile(array, SHARES)
    np.testing.assert_allclose(percentiles(lambda: pieces, SHARES), expected, rtol=1e-12, atol=1e-300)


def test_many_values_of_many_sizes() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(-6, 4, 100_000) * rng.choice([-1, 1], 100_000)
    pieces = np.array_split(values, 7)
    np.testing.assert_allclose(percentiles(lambda: pieces, SHARES), np.quantile(values, SHARES), rtol=1e-12)


def test_infinite_values_are_values() -> None:
    values = np.array([-math.inf, 0.0, 1.0, math.inf, math.inf])
    assert percentiles(lambda: [values], (0.0, 0.5, 0.75, 0.9, 1.0)) == [
        -math.inf,
        1,
        math.inf,
        math.inf,
        math.inf,
    ]
    assert percentiles(lambda: [values], (0.6,)) == [pytest.approx(math.inf)]


def test_nothing_has_no_percentiles() -> None:
    assert percentiles(lambda: [np.empty(0)], SHARES) == []
