"""Intervals from top-k lists against values over whole vocabularies."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.sweeps import sweep
from tokscore.analytics import (
    Bounds,
    TokenError,
    TopK,
    topk_divergences,
    topk_entropy,
    topk_gjs,
    topk_kl_teacher_student,
    topk_limits,
    topk_skew_kl,
    topk_total_variation,
)
from tokscore.dataset.errors import InputError, UsageError

FloatArray = NDArray[np.float64]


def xlogy(x: FloatArray, y: FloatArray) -> FloatArray:
    """x log y, 0 where x is 0."""
    logs = np.log(y, out=np.zeros_like(y), where=(y > 0) & (x > 0))
    return x * np.where((x > 0) & (y == 0), -np.inf, logs)


def kl(p: FloatArray, q: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        total: FloatArray = (xlogy(p, p) - np.where(p > 0, xlogy(p, q), 0.0)).sum(axis=-1)
    return total


def gjs(p: FloatArray, q: FloatArray, alpha: float) -> FloatArray:
    m = alpha * p + (1 - alpha) * q
    return alpha * kl(p, m) + (1 - alpha) * kl(q, m)


def listed(p: FloatArray, k: int, dtype: type = np.float64) -> TopK:
    """The k largest of [tokens, vocab]."""
    ids = np.argsort(-p, axis=1, kind="stable")[:, :k]
    return TopK(ids, np.log(np.take_along_axis(p, ids, axis=1)).astype(dtype))


def one(*p: float, k: int | None = None, vocab_size: int | None = None) -> TopK:
    return listed(np.array([p]), k or len(p))._replace(vocab_size=vocab_size)


def test_jsd_counts_the_mass_outside_the_teachers_list() -> None:
    teacher, student = one(0.5, 0.5), one(0.001, 0.001, 0.998)
    bounds = topk_divergences(teacher, student).gjs
    assert bounds.lower[0] == pytest.approx(0.685932, abs=5e-7)
    assert bounds.upper[0] == pytest.approx(0.685932, abs=5e-7)


def test_total_variation_counts_the_mass_outside_the_students_list_too() -> None:
    bounds = topk_total_variation(one(0.5, 0.5), one(0.001, 0.001, 0.998))
    assert (bounds.lower[0], bounds.upper[0]) == pytest.approx((0.998, 0.998), abs=1e-12)


def test_a_cut_student_list_gives_an_interval_that_contains_0() -> None:
    bounds = topk_divergences(one(0.6, 0.3, 0.1), one(0.6, 0.3, 0.1, k=2)).gjs
    assert bounds.lower[0] == 0.0
    assert bounds.upper[0] == pytest.approx(0.0693147, abs=5e-8)


@pytest.mark.parametrize("k", [1, 50])
def test_the_realised_token_counts_for_any_k(k: int) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(80), 20), rng.dirichlet(np.ones(80), 20)
    token_ids = np.argmin(p, axis=1)
    rows = np.arange(20)
    bounds = topk_divergences(
        listed(p, k)._replace(realised=np.log(p[rows, token_ids])),
        listed(q, k)._replace(realised=np.log(q[rows, token_ids])),
        token_ids=token_ids,
    ).kl_teacher_student
    without = topk_divergences(listed(p, k), listed(q, k)).kl_teacher_student
    np.testing.assert_array_less(bounds.unresolved, without.unresolved)


@pytest.mark.parametrize(("alpha", "expected"), [(0.1, 0.0307158), (0.5, 0.0842938), (0.9, 0.0312532)])
def test_gjs_weights_the_teacher_with_alpha(alpha: float, expected: float) -> None:
    lower, upper, unresolved = topk_gjs(*one(0.7, 0.2, 0.1)[:2], *one(0.3, 0.4, 0.3)[:2], alpha)
    assert (lower[0], upper[0]) == pytest.approx((expected, expected), abs=5e-8)
    assert unresolved[0] == pytest.approx(0.0, abs=1e-12)


def test_the_name_of_a_kl_says_its_direction() -> None:
    teacher, student = one(0.7, 0.2, 0.1, vocab_size=3), one(0.3, 0.4, 0.3, vocab_size=3)
    both = topk_divergences(teacher, student)
    for bounds, expected in ((both.kl_teacher_student, 0.344618), (both.kl_student_teacher, 0.352653)):
        assert (bounds.lower[0], bounds.upper[0]) == pytest.approx((expected, expected), abs=5e-7)


def test_jsd_of_opposites_stays_below_ln_2() -> None:
    bounds = topk_divergences(one(0.999, 0.001), one(0.001, 0.999)).gjs
    assert bounds.lower[0] == pytest.approx(0.685240, abs=5e-7)
    assert bounds.upper[0] <= math.log(2)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_at_the_ends_is_refused_with_the_names_of_the_kls(alpha: float) -> None:
    with pytest.raises(UsageError, match=r"kl_teacher_student.*kl_student_teacher"):
        topk_gjs(*one(0.7, 0.3)[:2], *one(0.3, 0.7)[:2], alpha)


def test_a_truncated_sum_below_0_is_completed_not_clamped() -> None:
    bounds = topk_divergences(one(0.9, 0.1, k=1), one(0.6, 0.4, k=1)).kl_student_teacher
    assert bounds.lower[0] == pytest.approx(0.311239, abs=5e-7)
    assert bounds.upper[0] == math.inf


def test_half_precision_is_refused() -> None:
    teacher = one(0.7, 0.3)
    half = TopK(teacher.ids, teacher.logprobs.astype(np.float16))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="float16; expected float32 or float64"):
        topk_divergences(half, teacher)


def test_a_list_that_sums_to_more_than_1_is_refused() -> None:
    with pytest.raises(TokenError, match=r"sum to 1\.01.*half precision"):
        topk_divergences(one(0.7, 0.31), one(0.7, 0.3))


def test_equal_logits_stored_in_float32_and_in_float64_show_no_divergence() -> None:
    logits = np.random.default_rng(4).normal(0, 5, (500, 80))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for bounds in topk_divergences(listed(p, 20, np.float32), listed(p, 20), alpha=0.3):
        assert not bounds.lower.any()


def test_a_list_against_itself_has_lower_limits_of_exactly_0() -> None:
    rng = np.random.default_rng(1)
    for scale in (0.5, 3, 12):
        logits = rng.normal(0, scale, (3000, 60))
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for k in (1, 7, 60):
            same = listed(p, k, np.float32)
            for bounds in topk_divergences(same, same, alpha=0.3):
                assert not bounds.lower.any()


def test_vocabularies_of_other_sizes_are_compared_by_id() -> None:
    p, q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.4, 0.3, 0.1, 0.2]])
    teacher, student = listed(p, 3)._replace(vocab_size=3), listed(q, 4)._replace(vocab_size=4)
    both = topk_divergences(teacher, student)
    exact = float(kl(np.append(p, 0.0), q[0]))
    assert both.kl_teacher_student.lower[0] <= exact <= both.kl_teacher_student.upper[0] + 1e-12
    assert both.kl_teacher_student.upper[0] == pytest.approx(exact, abs=1e-9)
    assert both.kl_student_teacher.upper[0] == math.inf


def test_an_id_beyond_the_smaller_vocabulary_has_no_mass_there() -> None:
    def side(ids: list[int], p: list[float], vocab_size: int) -> TopK:
        return TopK(np.array([ids]), np.log(np.array([p])), None, vocab_size)

    teacher, student = side([5, 152_000], [0.6, 0.4], 152_064), side([5, 7], [0.5, 0.5], 151_936)
    total_variation = topk_total_variation(teacher, student)
    assert (total_variation.lower[0], total_variation.upper[0]) == pytest.approx((0.5, 0.5), abs=1e-12)
    exact = float(gjs(np.array([0.6, 0.4, 0.0]), np.array([0.5, 0.0, 0.5]), 0.5))
    bounds = topk_divergences(teacher, student).gjs
    assert (bounds.lower[0], bounds.upper[0]) == pytest.approx((exact, exact), abs=1e-12)


@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-9), (np.float32, 1e-4)])
def test_whole_vocabularies_give_the_exact_value(dtype: type, atol: float) -> None:
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.full(40, 0.3), 200) + 1e-9, rng.dirichlet(np.full(40, 0.3), 200) + 1e-9
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    teacher, student = listed(p, 40, dtype), listed(q, 40, dtype)
    both = topk_divergences(teacher._replace(vocab_size=40), student._replace(vocab_size=40), alpha=0.2)
    for bounds, exact in zip(both, (kl(p, q), kl(q, p), gjs(p, q, 0.2)), strict=True):
        np.testing.assert_allclose(bounds.lower, exact, atol=atol)
        np.testing.assert_allclose(bounds.upper, exact, atol=atol)
        assert (bounds.lower <= exact).all()
        assert (bounds.upper >= exact).all()


def test_a_whole_list_limits_the_kl_to_it_only() -> None:
    teacher, student = one(0.7, 0.2, 0.1, vocab_size=3), one(0.3, 0.4, 0.3, k=2, vocab_size=3)
    both = topk_divergences(teacher, student)
    assert both.kl_teacher_student.upper[0] == math.inf
    assert both.kl_student_teacher.upper[0] == pytest.approx(0.352653, abs=5e-7)


def test_the_upper_limit_towards_a_whole_list_is_the_worst_completion() -> None:
    q = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    teacher, student = one(0.5, 0.3, 0.2, k=2, vocab_size=5), one(*q, vocab_size=5)
    upper = topk_divergences(teacher, student).kl_teacher_student.upper[0]
    vertices = []
    for i in range(2, 5):  # 0.2 is left, below the cap of 0.3
        p = np.array([0.5, 0.3, 0.0, 0.0, 0.0])
        p[i] = 0.2
        vertices.append(float(kl(p, q)))
    assert upper >= max(vertices)
    assert upper == pytest.approx(max(vertices), abs=0.2 * math.log(1.5) + 1e-9)


# From another implementation, which finds the tail's ratio by 50 bisections.
RECORDED = {
    0.1: (0.720586055166, 0.697963357350, 0.062431145281, 0.225792176167),
    0.5: (0.720586055166, 0.697963357350, 0.163168669205, 0.467281744225),
    0.9: (0.720586055166, 0.697963357350, 0.061039367139, 0.199977071051),
}


@pytest.mark.parametrize("alpha", RECORDED)
def test_limits_equal_recorded_ones(alpha: float) -> None:
    p = np.array([[0.5, 0.2, 0.1, 0.08, 0.05, 0.03, 0.02, 0.01, 0.006, 0.004]])
    q = np.array([[0.03, 0.1, 0.45, 0.02, 0.2, 0.1, 0.05, 0.03, 0.015, 0.005]])
    both = topk_divergences(listed(p, 4), listed(q, 4), alpha=alpha)
    recorded = RECORDED[alpha]
    assert both.kl_teacher_student.lower[0] == pytest.approx(recorded[0], abs=1e-9)
    assert both.kl_student_teacher.lower[0] == pytest.approx(recorded[1], abs=1e-9)
    assert both.gjs.lower[0] == pytest.approx(recorded[2], abs=1e-9)
    assert both.gjs.upper[0] == pytest.approx(recorded[3], abs=1e-9)


class Partial:
    """One token of both models with the ids that are not listed, to complete in other ways."""

    def __init__(self, seed: int, vocab_size: int, k: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.p = self.rng.dirichlet(np.full(vocab_size, 0.5)) + 1e-6
        self.q = self.rng.dirichlet(np.full(vocab_size, 0.5)) + 1e-6
        self.p /= self.p.sum()
        self.q /= self.q.sum()
        self.teacher, self.student = listed(self.p[None], k), listed(self.q[None], k)

    def completion(self) -> tuple[FloatArray, FloatArray]:
        return self._complete(self.p, self.teacher), self._complete(self.q, self.student)

    def _complete(self, true: FloatArray, topk: TopK) -> FloatArray:
        """The listed values, and others of the same sum that stay below the least listed one."""
        hidden = np.setdiff1d(np.arange(len(true)), topk.ids[0])
        residual, cap = true[hidden].sum(), true[topk.ids[0, -1]]
        other = self.rng.dirichlet(np.full(len(hidden), self.rng.choice([0.05, 1.0]))) * residual
        # As far from the true values as the cap allows.
        excess = other - true[hidden]
        share = np.min((cap - true[hidden])[excess > 0] / excess[excess > 0], initial=1.0)
        complete = true.copy()
        complete[hidden] += share * excess
        return complete


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), vocab_size=st.integers(5, 12), k=st.integers(1, 4))
@pytest.mark.slow
def test_no_completion_falls_outside_the_interval(seed: int, vocab_size: int, k: int) -> None:
    partial = Partial(seed, vocab_size, k)
    both = topk_divergences(partial.teacher, partial.student, alpha=0.3)
    distance = topk_total_variation(partial.teacher, partial.student)
    pairs = [partial.completion() for _ in range(100)]
    p, q = (np.array(side) for side in zip(*pairs, strict=True))
    values = (kl(p, q), kl(q, p), gjs(p, q, 0.3), np.abs(p - q).sum(axis=1) / 2)
    for bounds, value in zip((*both, distance), values, strict=True):
        assert (value >= bounds.lower).all()
        assert (value <= bounds.upper).all()


@pytest.mark.parametrize("seed", sweep(range(8), quick=[0]))
@pytest.mark.parametrize("name", ["kl_teacher_student", "kl_student_teacher", "gjs"])
@pytest.mark.slow
def test_the_lower_limit_is_the_least_completion(seed: int, name: str) -> None:
    partial = Partial(seed, vocab_size=14, k=3)
    bounds: Bounds = getattr(topk_divergences(partial.teacher, partial.student), name)
    hidden = [np.setdiff1d(np.arange(14), topk.ids[0]) for topk in (partial.teacher, partial.student)]
    caps = partial.p[partial.teacher.ids[0, -1]], partial.q[partial.student.ids[0, -1]]
    n = len(hidden[0])

    def value(tails: FloatArray) -> float:
        p, q = partial.p.copy(), partial.q.copy()
        p[hidden[0]], q[hidden[1]] = tails[:n], tails[n:]
        measures = {"kl_teacher_student": kl(p, q), "kl_student_teacher": kl(q, p), "gjs": gjs(p, q, 0.5)}
        return float(measures[name])

    best = np.concatenate([partial.p[hidden[0]], partial.q[hidden[1]]])
    sums = np.repeat(np.eye(2), n, axis=1)
    residuals = sums @ best
    constraint = {"type": "eq", "fun": lambda tails: sums @ tails - residuals}
    # In stages, since the solver loses its way where a probability is nearly 0.
    for floor in (1e-5, 1e-7, 1e-9, 1e-9):
        found = minimize(
            value,
            np.maximum(best, floor),
            method="SLSQP",
            bounds=[(floor, caps[0])] * n + [(floor, caps[1])] * n,
            constraints=constraint,
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if found.fun < value(best) and np.allclose(sums @ found.x, residuals, rtol=0, atol=1e-9):
            best = found.x
    assert bounds.lower[0] == pytest.approx(value(best), abs=1e-5)


def test_the_gjs_upper_limit_is_reached_by_disjoint_tails() -> None:
    p = np.array([[0.5, 0.3, 0.1, *[0.02] * 5, *[0.0] * 5]])
    q = np.array([[0.3, 0.5, 0.1, *[0.0] * 5, *[0.02] * 5]])
    teacher, student = TopK(np.array([[0, 1]]), np.log(p[:, :2])), TopK(np.array([[0, 1]]), np.log(q[:, :2]))
    # The third id is in neither list, and its mass moves to the disjoint tails.
    p[0, 2], p[0, 3:8] = 0.0, 0.04
    q[0, 2], q[0, 8:] = 0.0, 0.04
    upper = topk_divergences(teacher, student, alpha=0.4).gjs.upper
    np.testing.assert_allclose(upper, gjs(p, q, 0.4), atol=1e-12)


def test_a_tokens_value_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.full(60, 0.1), 500) + 1e-9, rng.dirichlet(np.full(60, 0.1), 500) + 1e-9
    teacher, student = listed(p / p.sum(1, keepdims=True), 9), listed(q / q.sum(1, keepdims=True), 9)
    whole = topk_divergences(teacher, student)
    for start, stop in ((0, 1), (7, 8), (3, 40), (100, 500)):
        piece = topk_divergences(teacher.rows(start, stop), student.rows(start, stop))
        for expected, found in zip(whole, piece, strict=True):
            for before, after in zip(expected, found, strict=True):
                np.testing.assert_array_equal(before[start:stop], after)


def test_no_tokens_give_empty_intervals() -> None:
    empty = TopK(np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32))
    assert topk_divergences(empty, empty).gjs.lower.shape == (0,)


def test_lists_without_entries_still_have_limits() -> None:
    empty = TopK(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32))
    bounds = topk_divergences(empty, empty).gjs
    np.testing.assert_array_equal(bounds.lower, 0.0)
    np.testing.assert_allclose(bounds.upper, math.log(2))
    np.testing.assert_array_equal(bounds.unresolved, 1.0)


def test_shorter_lists_are_padded_with_minus_1() -> None:
    padded = TopK(np.array([[0, 1, -1]]), np.log([[0.6, 0.3, 1.0]]))
    expected = topk_divergences(one(0.6, 0.3, 0.1, k=2), one(0.5, 0.3, 0.2))
    found = topk_divergences(padded, one(0.5, 0.3, 0.2))
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-12)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.01])
def test_a_logprob_that_is_none_is_refused_with_its_place(value: float) -> None:
    good = listed(np.full((5000, 4), 0.25), 2)
    bad = good._replace(logprobs=good.logprobs.copy())
    bad.logprobs[4321, 1] = value
    with pytest.raises(TokenError, match="student, token 4321") as caught:
        topk_divergences(good, bad)
    assert caught.value.token == 4321
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_id_listed_twice_is_refused() -> None:
    twice = TopK(np.array([[3, 3]]), np.log([[0.4, 0.4]]))
    with pytest.raises(TokenError, match="teacher, token 0: id 3 is listed twice"):
        topk_divergences(twice, one(0.5, 0.5))


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="teacher has 2 tokens, student 1"):
        topk_divergences(listed(np.full((2, 4), 0.25), 2), one(0.5, 0.5))


def test_swapping_the_models_swaps_the_kl() -> None:
    teacher, student = one(0.7, 0.2, 0.1, k=2), one(0.3, 0.4, 0.3, k=2)
    swapped = topk_kl_teacher_student(*student[:2], *teacher[:2])
    np.testing.assert_allclose(
        topk_divergences(teacher, student).kl_student_teacher.lower, swapped.lower, atol=1e-12
    )


@pytest.mark.parametrize("ids", [[[2**32 + 5]], [[5.9]], [[-2]], [[2**63]]])
def test_ids_that_are_no_token_ids_are_refused(ids: list[list[float]]) -> None:
    with pytest.raises(InputError, match="ids"):
        topk_gjs(np.array(ids), np.log([[0.9]]), np.array([[5]]), np.log([[0.9]]), 0.5)


def test_lists_are_taken_for_arrays() -> None:
    listed = topk_gjs([[1, 2]], [[-1.0, -2.0]], [[1, 2]], [[-1.0, -2.0]], 0.5)  # type: ignore[arg-type]
    assert listed.lower.tolist() == [0.0]


def test_several_alphas_in_one_run_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(4)
    teacher, student = listed(rng.dirichlet(np.ones(30), 50), 6), listed(rng.dirichlet(np.ones(30), 50), 6)
    limits = topk_limits(teacher, student, alphas=(0.1, 0.5, 0.9))
    for alpha in limits.alphas:
        for found, alone in (
            (limits.of("gjs", alpha), topk_gjs(*teacher[:2], *student[:2], alpha)),
            (limits.of("skew_kl", alpha), topk_skew_kl(*teacher[:2], *student[:2], alpha)),
        ):
            np.testing.assert_array_equal(np.array(found), np.array(alone))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), vocab_size=st.integers(5, 12), k=st.integers(1, 4))
def test_no_completion_has_another_skew_kl_or_entropy(seed: int, vocab_size: int, k: int) -> None:
    partial = Partial(seed, vocab_size, k)
    pairs = [partial.completion() for _ in range(60)]
    p, q = (np.array(side) for side in zip(*pairs, strict=True))
    skew = topk_skew_kl(*partial.teacher[:2], *partial.student[:2], 0.2)
    entropy = topk_entropy(*partial.teacher[:2], vocab_size=vocab_size)
    for bounds, value in ((skew, kl(p, 0.2 * p + 0.8 * q)), (entropy, -xlogy(p, p).sum(axis=-1))):
        assert (value >= bounds.lower).all()
        assert (value <= bounds.upper).all()


def test_entropy_limits_pack_the_tail_at_the_cap_or_spread_it() -> None:
    bounds = topk_entropy(*one(0.5, 0.2, 0.1, 0.1, 0.1, k=2)[:2], vocab_size=5)
    head = -0.5 * math.log(0.5) - 0.2 * math.log(0.2)
    assert bounds.lower[0] == pytest.approx(head - 0.2 * math.log(0.2) - 0.1 * math.log(0.1), abs=1e-9)
    assert bounds.upper[0] == pytest.approx(head - 0.3 * math.log(0.1), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_upper_limits_are_the_largest_vertices_where_there_is_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size, k, alpha = 60, 3, float(rng.uniform(0.1, 0.9))
    p, q = np.zeros(vocab_size), np.zeros(vocab_size)
    p[:k], q[k - 1 : 2 * k - 1] = np.sort(rng.uniform(0.1, 0.28, (2, k)))[:, ::-1]
    teacher = TopK(np.arange(k)[None], np.log(p[None, :k]))
    student = TopK(np.arange(k - 1, 2 * k - 1)[None], np.log(q[None, k - 1 : 2 * k - 1]))
    # Each tail on as few ids as its cap allows, at ids that neither list has and the other tail avoids.
    for side, start in ((p, 2 * k), (q, vocab_size // 2)):
        cap, left = side[side > 0].min(), 1.0 - side.sum()
        while left > 0:
            side[start] = min(cap, left)
            left, start = left - side[start], start + 1
    limits = topk_limits(teacher, student, alphas=(alpha,))
    assert limits.of("gjs", alpha).upper[0] == pytest.approx(gjs(p, q, alpha), abs=1e-9)
    assert limits.of("skew_kl", alpha).upper[0] == pytest.approx(kl(p, alpha * p + (1 - alpha) * q), abs=1e-9)
    assert limits.of("total_variation").upper[0] == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-9)


@pytest.mark.parametrize("missing", [1e-6, 5e-6, 5e-4])
def test_whole_lists_that_sum_to_less_than_1_leave_room_for_the_exact_value(missing: float) -> None:
    rng = np.random.default_rng(6)
    p, q = (rng.dirichlet(np.ones(8), 50) for _ in range(2))
    teacher = listed(p * (1 - missing), 8)._replace(vocab_size=8)
    student = listed(q, 8)._replace(vocab_size=8)
    limits = topk_limits(teacher, student, alphas=[0.3])
    exact = {
        "kl_teacher_student": kl(p, q),
        "kl_student_teacher": kl(q, p),
        "total_variation": np.abs(p - q).sum(axis=1) / 2,
        "entropy_teacher": -xlogy(p, p).sum(axis=1),
    }
    for name, values in exact.items():
        bounds = limits.of(name)
        assert (bounds.lower <= values).all(), name
        assert (values <= bounds.upper).all(), name
    assert (limits.of("gjs", 0.3).lower <= gjs(p, q, 0.3)).all()
    assert (gjs(p, q, 0.3) <= limits.of("gjs", 0.3).upper).all()
    same = topk_limits(teacher, listed(p, 8)._replace(vocab_size=8))
    assert (same.of("kl_teacher_student").lower <= 1e-12).all()
    assert (same.of("kl_teacher_student").upper >= 0).all()


def test_whole_lists_that_lack_much_are_refused() -> None:
    half = TopK(np.array([[0, 1]]), np.log([[0.5, 0.4]]), vocab_size=2)
    with pytest.raises(TokenError, match=r"sum to 0\.9; expected at most 1, or 1 where no other id has any"):
        topk_limits(half, one(0.5, 0.5, vocab_size=2))
    part = half._replace(vocab_size=3)
    assert topk_limits(part, one(0.5, 0.5, vocab_size=3)).of("kl_teacher_student").lower[0] >= 0
