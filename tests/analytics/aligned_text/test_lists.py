"""Lists of two tokenizers, held against a sum over whole distributions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tokscore.analytics.aligned_text.lists import common_ids, compare_lists

TEACHER = {0: b"a", 1: b"b", 2: b"c", 3: b"de", 4: b"b"}
STUDENT = {0: b"c", 1: b"a", 2: b"d", 3: b"b"}


def table(*distributions: dict[int, float]) -> pa.Table:
    lists = [sorted(each.items(), key=lambda item: -item[1]) for each in distributions]
    return pa.table(
        {
            "top_ids": pa.array([[i for i, _ in each] or None for each in lists], pa.list_(pa.int32())),
            "top_logprobs": pa.array(
                [[float(np.log(p)) for _, p in each] or None for each in lists], pa.list_(pa.float64())
            ),
        }
    )


def gjs(p: list[float], q: list[float]) -> float:
    both = [np.array(each) for each in (p, q)]
    mixture = sum(both) / 2
    return float(
        sum(0.5 * (each[each > 0] * np.log(each[each > 0] / mixture[each > 0])).sum() for each in both)
    )


def test_texts_in_common_are_numbered() -> None:
    common = common_ids(TEACHER, STUDENT)
    assert common.teacher[[0, 1, 2]].tolist() == common.student[[1, 3, 0]].tolist()
    # No text of the other side, or not the first id of its text.
    assert common.teacher[3] == common.teacher[4] == common.student[2] == -1


def test_limits_hold_what_is_known_and_all_ways_to_split_the_rest() -> None:
    teacher = table({0: 0.5, 1: 0.2, 3: 0.2}, {2: 0.6, 0: 0.4}, {})
    student = table({1: 0.4, 3: 0.3, 2: 0.1}, {0: 0.6, 1: 0.4}, {0: 1.0})
    rows = np.arange(3)
    found = compare_lists(teacher, rows, student, rows, common_ids(TEACHER, STUDENT))
    assert found.has_lists.tolist() == [True, True, False]
    assert found.is_same_top.tolist() == [True, True, False]
    np.testing.assert_allclose(found.overlap[:2], [2 / 3, 1])
    # What is not in both lists is one outcome, or has nothing in common.
    assert found.gjs_lower[0] == pytest.approx(gjs([0.5, 0.2, 0.3], [0.4, 0.3, 0.3]), abs=1e-12)
    assert found.gjs_upper[0] == pytest.approx(gjs([0.5, 0.2, 0.3, 0], [0.4, 0.3, 0, 0.3]), abs=1e-12)
    # Lists that hold everything leave nothing open.
    np.testing.assert_allclose([found.gjs_lower[1], found.gjs_upper[1]], 0, atol=1e-12)


def test_the_limits_hold_the_divergence_of_random_distributions() -> None:
    rng = np.random.default_rng(0)
    texts = {i: bytes([97 + i]) for i in range(12)}
    common = common_ids(texts, texts)
    for _ in range(50):
        p, q = rng.dirichlet(np.full(12, 0.4), 2)
        lists = [dict(sorted(enumerate(each), key=lambda item: -item[1])[:4]) for each in (p, q)]
        one = np.zeros(1, np.int64)
        found = compare_lists(table(lists[0]), one, table(lists[1]), one, common)
        assert found.gjs_lower[0] - 1e-12 <= gjs(list(p), list(q)) <= found.gjs_upper[0] + 1e-12
