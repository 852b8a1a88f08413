"""Seconds on many replicas."""

from __future__ import annotations

import pytest

from tokscore.scoring.cost.replicas import seconds_on


@pytest.mark.parametrize(
    ("n_replicas", "part_s", "expected_s"),
    [
        (1, [3.0, 1.0, 2.0], 6.0),
        (2, [1.0, 2.0, 3.0], 3.0),  # 3 beside 2 and 1
        (2, [9.0, 1.0, 1.0], 9.0),  # the largest is begun first
        (64, [5.0, 4.0], 5.0),  # more replicas than parts
        (8, [], 0.0),
        (10, [1.0] * 200, 20.0),
    ],
)
def test_each_replica_takes_the_largest_part_that_is_left(
    n_replicas: int, part_s: list[float], expected_s: float
) -> None:
    assert seconds_on(n_replicas, part_s) == expected_s


def test_a_replica_starts_before_it_works() -> None:
    assert seconds_on(2, [3.0, 3.0], start_s=10.0) == 13.0
    assert seconds_on(2, [], start_s=10.0) == 0.0
