"""Sums that no order changes."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics.statistics.totals import ExactTotals

# Whole multiples of 2**-256 below 2**500.
finite = st.floats(-1e120, 1e120).filter(lambda value: value == 0 or abs(value) > 1e-20)


def total(values: list[float]) -> float:
    totals = ExactTotals(1)
    for half in (values[::2], values[1::2]):
        totals.add(np.array(half).reshape(-1, 1), np.zeros(len(half), np.int64))
    return totals.value(0)[0]


@given(st.lists(finite, max_size=30))
def test_the_sum_is_rounded_once(values: list[float]) -> None:
    assert total(values) == math.fsum(values)


@given(st.lists(st.floats(-1e100, 1e100), max_size=30), st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], shuffler: random.Random) -> None:
    before = total(values)
    shuffler.shuffle(values)
    assert total(values) == before


@pytest.mark.parametrize("value", [math.inf, 1e200])
def test_terms_that_are_too_large_make_the_total_infinite(value: float) -> None:
    assert total([1.0, value]) == math.inf


def test_groups_are_added_up_apart() -> None:
    totals = ExactTotals(2)
    totals.add(np.array([[1.0, 2.0], [0.5, -4.0], [0.25, 8.0]]), np.array([1, 0, 1]))
    assert [totals.value(group) for group in range(3)] == [[0.5, -4.0], [1.25, 10.0], [0.0, 0.0]]


def test_squares_of_small_ratios_keep_their_digits() -> None:
    square = math.exp(-88.3)
    assert total([square] * 1000) == math.fsum([square] * 1000)
