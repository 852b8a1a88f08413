"""Sums that no order changes."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.totals import ExactSum

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(finite, max_size=30))
def test_the_sum_is_rounded_once(values: list[float]) -> None:
    total = ExactSum()
    for value in values:
        total.add(value)
    assert total.value() == math.fsum(values)


@given(st.lists(finite, max_size=30), st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], shuffler: random.Random) -> None:
    sums = []
    for _ in range(2):
        total = ExactSum()
        for value in values:
            total.add(value)
        sums.append(total.value())
        shuffler.shuffle(values)
    assert sums[0] == sums[1]
