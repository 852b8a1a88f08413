"""Limits where both models are known at the ids that the other lists."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.analytics.divergence.test_extremes import (
    ALPHAS,
    BASE,
    LOG_RATIOS,
    Logs,
    exact,
    intervals,
    side,
    with_log_ratio,
)
from tests.sweeps import sweep
from tokscore.analytics import TopK, topk_limits
from tokscore.dataset.errors import InputError

FloatArray = NDArray[np.float64]
# Names of the limits and of the point that is one of them.
AS_ONE = {
    "kl_tail_as_one_teacher_student": "kl_teacher_student",
    "kl_tail_as_one_student_teacher": "kl_student_teacher",
}


def with_given(topk: TopK, logs: FloatArray, ids: NDArray[np.int64]) -> TopK:
    """The lists with the logprobs of further ids, [tokens, n]; -1 is none."""
    there = np.where(ids < 0, 0, ids)
    return topk._replace(
        at_ids=ids, at_logprobs=np.take_along_axis(logs, there, axis=1).astype(topk.logprobs.dtype)
    )


def known_at_both(
    p: FloatArray, q: FloatArray, k: tuple[int, int], dtype: type, vocab_size: int | None = None
) -> tuple[TopK, TopK]:
    """Lists of logprobs [tokens, vocab], each known at the ids of the other."""
    sides = []
    for logs, n in zip((p, q), k, strict=True):
        ids = np.argsort(-logs, axis=1, kind="stable")[:, :n]
        sides.append(TopK(ids, np.take_along_axis(logs, ids, axis=1).astype(dtype), None, vocab_size))
    teacher, student = sides
    return with_given(teacher, p, student.ids), with_given(student, q, teacher.ids)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [(1, 1), (1, 3), (2, 4), (3, 2)])
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
def test_the_interval_contains_the_value_however_far_the_models_are_apart(
    log_ratio: float, index: int, k: tuple[int, int], dtype: type
) -> None:
    moved = with_log_ratio(BASE, index, log_ratio)
    for p, q in ((moved, BASE), (BASE, moved)):
        values = exact(p, q)
        limits = topk_limits(*known_at_both(np.array([p]), np.array([q]), k, dtype, len(p)), alphas=ALPHAS)
        apart = topk_limits(
            *(side(logs, n, dtype=dtype) for logs, n in zip((p, q), k, strict=True)), alphas=ALPHAS
        )
        before = intervals(apart)
        for name, found in intervals(limits).items():
            assert 0 <= found.lower[0] <= values[name] * (1 + 1e-15) + 1e-15, name
            assert found.upper[0] >= values[name] * (1 - 1e-15) - 1e-15, name
            assert found.upper[0] <= before[name].upper[0] + 1e-6, name
            assert found.lower[0] >= before[name].lower[0] * (1 - 1e-4) - 1e-6, name
        for name, of in AS_ONE.items():
            assert limits[name][0] <= values[of] * (1 + 1e-3) + 1e-5, name


def completions(
    known: FloatArray, is_known: NDArray[np.bool_], cap: float, n: int, rng: np.random.Generator
) -> FloatArray:
    """Random distributions [n, vocab] with the known probabilities, the others at most `cap` and summing to 1."""
    n_open = int((~is_known).sum())
    rest = 1.0 - known[is_known].sum()
    shares = rng.dirichlet(np.full(n_open, 10.0 ** rng.uniform(-2, 1)), n) * rest
    # All to the first ids, too, as far as the cap allows.
    packed = np.clip(rest - cap * np.arange(n_open), 0.0, cap)
    shares[: n // 4] = rng.permuted(np.tile(packed, (n // 4, 1)), axis=1)
    for _ in range(60):
        over = np.maximum(shares - cap, 0.0).sum(axis=1, keepdims=True)
        shares = np.minimum(shares, cap)
        room = cap - shares
        total = room.sum(axis=1, keepdims=True)
        shares += np.divide(over * room, total, out=np.zeros_like(room), where=total > 0)
    made = np.zeros((n, len(known)))
    made[:, is_known] = known[is_known]
    made[:, ~is_known] = shares
    return made


def values_of(p: FloatArray, q: FloatArray, alpha: float) -> dict[str, FloatArray]:
    """Every divergence of distributions [n, vocab]."""

    def kl(a: FloatArray, b: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(a > 0, a * (np.log(a) - np.log(b)), 0.0)
        total: FloatArray = terms.sum(axis=1)
        return total

    m = alpha * p + (1 - alpha) * q
    return {
        "kl_teacher_student": kl(p, q),
        "kl_student_teacher": kl(q, p),
        "total_variation": np.abs(p - q).sum(axis=1) / 2,
        f"gjs_{alpha:g}": alpha * kl(p, m) + (1 - alpha) * kl(q, m),
        f"skew_kl_{alpha:g}": kl(p, m),
    }


@pytest.mark.parametrize("seed", sweep(range(400), range(30)))
def test_no_completion_leaves_the_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = int(rng.integers(12, 40))
    k = tuple(int(n) for n in rng.integers(1, 6, 2))
    alpha = float(rng.choice([1e-3, 0.1, 0.5, 0.9]))
    logits = rng.normal(0, rng.choice([0.3, 2.0, 8.0]), (2, vocab_size))
    logits[1] += rng.choice([0.0, 1.0]) * (logits[0] - logits[1]) * 0.9
    whole = np.exp(logits - logits.max(axis=1, keepdims=True))
    whole /= whole.sum(axis=1, keepdims=True)
    if rng.random() < 0.3:
        whole[1, rng.integers(vocab_size)] = 0.0
        whole[1] /= whole[1].sum()
    with np.errstate(divide="ignore"):
        logs = np.log(whole)
    teacher, student = known_at_both(logs[:1], logs[1:], k, np.float64)  # type: ignore[arg-type]
    limits = topk_limits(teacher, student, alphas=(alpha,))
    is_known = np.isin(np.arange(vocab_size), np.concatenate([teacher.ids[0], student.ids[0]]))
    caps = [float(np.exp(each.logprobs.min())) for each in (teacher, student)]
    made = [completions(whole[row], is_known, caps[row], 400, rng) for row in (0, 1)]
    order = rng.permutation(400)
    for name, values in values_of(made[0], made[1][order], alpha).items():
        assert limits[f"{name}.lower"][0] <= values.min() + 1e-12, name
        assert limits[f"{name}.upper"][0] >= values.max() - 1e-12, name


def test_the_lower_limit_of_a_kl_is_that_with_the_rest_as_one_id() -> None:
    rng = np.random.default_rng(3)
    p, q = (np.log(rng.dirichlet(np.full(60, 0.3), 300) + 1e-12) for _ in range(2))
    limits = topk_limits(*known_at_both(p, q, (7, 5), np.float64))
    for name, of in AS_ONE.items():
        np.testing.assert_allclose(limits[name], limits[f"{of}.lower"], atol=1e-9)


def test_given_values_leave_open_the_rest_alone() -> None:
    p, q = np.log([[0.5, 0.3, 0.1, 0.06, 0.04]]), np.log([[0.1, 0.2, 0.5, 0.15, 0.05]])
    limits = topk_limits(*known_at_both(p, q, (2, 2), np.float64))
    assert limits["unresolved_teacher"][0] == pytest.approx(0.1)
    assert limits["unresolved_student"][0] == pytest.approx(0.2)
    assert limits["total_variation.upper"][0] == pytest.approx(1 - (0.1 + 0.2 + 0.1))


def test_an_id_beyond_the_vocabulary_does_not_fill_it() -> None:
    """A student of 3 ids of which 2 are known, given a fourth that it lacks."""
    teacher = TopK(np.array([[0, 3]]), np.log([[0.6, 0.3]]), None, 4)
    student = TopK(
        np.array([[0, 1]]), np.log([[0.5, 0.3]]), None, 3, np.array([[3, -1]]), np.array([[-np.inf, 0.0]])
    )
    limits = topk_limits(teacher, student)
    # Id 2 has what is left, 0.2.
    assert limits["entropy_student.lower"][0] == pytest.approx(
        -(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2)), abs=1e-9
    )
    assert limits["kl_teacher_student.lower"][0] == np.inf
    assert limits["kl_tail_as_one_teacher_student"][0] == np.inf


def test_given_ids_without_logprobs_are_refused() -> None:
    topk = side(BASE, 2)
    with pytest.raises(InputError, match="only one of"):
        topk_limits(topk._replace(at_ids=topk.ids), topk)
    with pytest.raises(InputError, match="given ids have shape"):
        topk_limits(topk._replace(at_ids=topk.ids, at_logprobs=topk.logprobs[:, :1]), topk)


def test_a_model_against_itself_has_no_tail() -> None:
    logs: Logs = BASE
    p = np.array([logs])
    limits = topk_limits(*known_at_both(p, p, (2, 2), np.float32))
    assert [limits[name][0] for name in AS_ONE] == [0, 0]
