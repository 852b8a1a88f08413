"""Every kernel where two models disagree without measure, against sums of 60 digits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import pytest

from tokscore.analytics import TopK, topk_gjs, topk_limits
from tokscore.analytics.divergence.advantages import token_advantages
from tokscore.analytics.divergence.measures import Bounds, TokenMeasures
from tokscore.analytics.divergence.topk import TokenError

ALPHAS = (1e-3, 0.1, 0.5, 0.9)
LOG_RATIOS = (0.0, 1e-8, 1.0, 50.0, 700.0, 1e4, np.inf)
INFINITY = Decimal("Infinity")
Logs = Sequence[float]


def with_log_ratio(logs: Logs, index: int, log_ratio: float) -> list[float]:
    """The distribution with one probability divided by exp(log_ratio), the others scaled to sum to 1."""
    p = np.exp(np.array(logs))
    moved = p[index] * np.exp(-log_ratio)
    scaled = np.log(p) + np.log((1 - moved) / (1 - p[index]))
    scaled[index] = logs[index] - log_ratio
    return scaled.tolist()


def exp(log: float) -> Decimal:
    return Decimal(0) if log == -np.inf else Decimal(log).exp()


def total(terms: Sequence[Decimal]) -> float:
    return float(sum(terms, Decimal(0)))


def kl(p: Logs, q: Sequence[Decimal]) -> Decimal:
    """Sum of p log(p / q)."""
    found = Decimal(0)
    for log, other in zip(p, q, strict=True):
        if log > -np.inf:
            found += INFINITY if other == 0 else exp(log) * (Decimal(log) - other.ln())
    return found


def exact(p: Logs, q: Logs) -> dict[str, float]:
    """Every measure of two whole distributions."""
    with localcontext(prec=60):
        mine, theirs = [exp(log) for log in p], [exp(log) for log in q]
        found = {
            "kl_teacher_student": kl(p, theirs),
            "kl_student_teacher": kl(q, mine),
            "total_variation": sum((abs(a - b) for a, b in zip(mine, theirs, strict=True)), Decimal(0)) / 2,
            "entropy_teacher": -sum((exp(x) * Decimal(x) for x in p if x > -np.inf), Decimal(0)),
            "entropy_student": -sum((exp(x) * Decimal(x) for x in q if x > -np.inf), Decimal(0)),
        }
        for alpha in ALPHAS:
            a = Decimal(alpha)
            m = [a * x + (1 - a) * y for x, y in zip(mine, theirs, strict=True)]
            found[f"skew_kl {alpha}"] = kl(p, m)
            found[f"gjs {alpha}"] = a * kl(p, m) + (1 - a) * kl(q, m)
        return {name: float(value) for name, value in found.items()}


def intervals(limits: TokenMeasures) -> dict[str, Bounds]:
    found = {
        name: limits.of(name)
        for name in (
            "kl_teacher_student",
            "kl_student_teacher",
            "total_variation",
            "entropy_teacher",
            "entropy_student",
        )
    }
    for alpha in ALPHAS:
        found |= {f"gjs {alpha}": limits.of("gjs", alpha), f"skew_kl {alpha}": limits.of("skew_kl", alpha)}
    return found


def side(logs: Logs, k: int, *, dtype: type = np.float64, is_whole: bool = True) -> TopK:
    ids = np.argsort(-np.array(logs), kind="stable")[:k]
    return TopK(ids[None], np.array(logs)[ids][None].astype(dtype), None, len(logs) if is_whole else None)


CASES = [
    pytest.param(
        index, log_ratio, is_teacher, id=f"{'teacher' if is_teacher else 'student'}-{index}-{log_ratio:g}"
    )
    for index in (0, 2)
    for log_ratio in LOG_RATIOS
    for is_teacher in (True, False)
]
BASE = np.log([0.5, 0.3, 0.15, 0.05]).tolist()


@pytest.mark.parametrize(("index", "log_ratio", "is_teacher"), CASES)
def test_whole_lists_give_the_value(index: int, log_ratio: float, is_teacher: bool) -> None:
    moved = with_log_ratio(BASE, index, log_ratio)
    p, q = (moved, BASE) if is_teacher else (BASE, moved)
    found = intervals(topk_limits(side(p, 4), side(q, 4), alphas=ALPHAS))
    for name, value in exact(p, q).items():
        lower, upper = found[name].lower[0], found[name].upper[0]
        assert lower == pytest.approx(value, rel=1e-12, abs=1e-12), name
        assert upper == pytest.approx(value, rel=1e-12, abs=1e-12), name
        # The stored logprobs are rounded themselves.
        assert lower <= value * (1 + 2e-16) + 2e-16, name
        assert upper >= value * (1 - 2e-16) - 2e-16, name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [(1, 1), (1, 3), (2, 4), (3, 2)])
@pytest.mark.parametrize(("index", "log_ratio", "is_teacher"), CASES)
def test_cut_lists_give_an_interval_that_contains_it(
    index: int, log_ratio: float, is_teacher: bool, k: tuple[int, int], dtype: type
) -> None:
    moved = with_log_ratio(BASE, index, log_ratio)
    p, q = (moved, BASE) if is_teacher else (BASE, moved)
    for token_id in range(4):
        teacher, student = (
            side(logs, n, dtype=dtype)._replace(realised=np.array([logs[token_id]]).astype(dtype))
            for logs, n in zip((p, q), k, strict=True)
        )
        limits = topk_limits(teacher, student, alphas=ALPHAS, token_ids=np.array([token_id]))
        for name, value in exact(p, q).items():
            found = intervals(limits)[name]
            assert 0 <= found.lower[0] <= value * (1 + 1e-15) + 1e-15, (name, token_id)
            assert found.upper[0] >= value * (1 - 1e-15) - 1e-15, (name, token_id)


@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
def test_exact_values_of_logits_are_right(log_ratio: float) -> None:
    torch = pytest.importorskip("torch")
    from tokscore.scoring.exact.divergences import exact_divergences

    moved = with_log_ratio(BASE, 2, log_ratio)
    for p, q in ((moved, BASE), (BASE, moved)):
        blocks = (torch.tensor([logs], dtype=torch.float64) for logs in (p, q))
        found = exact_divergences(*blocks, torch.tensor([1]), alphas=ALPHAS)
        values = exact(p, q)
        for name in ("kl_teacher_student", "kl_student_teacher", "total_variation"):
            assert getattr(found, name)[0] == pytest.approx(values[name], rel=1e-12, abs=1e-15), name
        for index, alpha in enumerate(ALPHAS):
            assert found.gjs[index, 0] == pytest.approx(values[f"gjs {alpha}"], rel=1e-12, abs=1e-15)


def test_a_log_ratio_of_800_leaves_the_gjs_where_it_is() -> None:
    ids = np.array([[0, 1]])
    lower, upper, _ = topk_gjs(ids, np.array([[0.0, -800.0]]), ids, np.log([[0.5, 0.5]]))
    assert (lower[0], upper[0]) == pytest.approx((0.215762, 0.215762), abs=5e-7)


def test_logprobs_that_are_whole_numbers_count_as_float64() -> None:
    listed, floats = [[0, 1]], [[0.0, -800.0]]
    whole = topk_gjs(listed, [[0, -800]], listed, np.log([[0.5, 0.5]]))  # type: ignore[arg-type]
    assert (whole.lower[0], whole.upper[0]) == pytest.approx((0.215762, 0.215762), abs=5e-7)
    np.testing.assert_array_equal(whole, topk_gjs(listed, floats, listed, np.log([[0.5, 0.5]])))  # type: ignore[arg-type]
    ids = np.array(listed)
    realised = TopK(ids, np.array([[0, -800]]), np.array([0]))  # type: ignore[arg-type]
    assert topk_limits(realised, realised, token_ids=np.array([0])).of("kl_teacher_student").lower[0] == 0.0
    assert token_advantages(np.array([-2]), np.array([-3])).tolist() == [1.0]  # type: ignore[arg-type]


def test_a_list_that_ends_in_minus_infinity_leaves_nothing_outside() -> None:
    ids = np.array([[0, 1, 2]])
    logs = np.array([[np.log(0.6), np.log(0.4), -np.inf]])
    limits = topk_limits(TopK(ids, logs), TopK(ids + 1, logs))
    assert limits.of("kl_teacher_student").lower[0] == np.inf
    assert limits["unresolved_teacher"][0] == pytest.approx(0.6)
    # Ids 0 to 3 have 0.6, 0.4, 0, 0 and 0, 0.6, 0.4, 0.
    values = exact([*logs[0].tolist(), -np.inf], [-np.inf, *logs[0].tolist()])
    for name, found in intervals(topk_limits(TopK(ids, logs), TopK(ids + 1, logs), alphas=ALPHAS)).items():
        assert found.lower[0] == pytest.approx(values[name], abs=1e-12), name
        if not name.startswith("entropy"):
            assert found.upper[0] == pytest.approx(values[name], abs=0.5), name


def test_minus_infinity_beside_too_little_is_refused() -> None:
    bad = TopK(np.array([[0, 1]]), np.array([[np.log(0.6), -np.inf]]))
    with pytest.raises(TokenError, match=r"sum to 0\.6; expected at most 1, or 1 where no other id has any"):
        topk_limits(bad, bad)


def test_interpreted_kernels_say_what_compiled_ones_do() -> None:
    """Machine code that overflows says nothing; Python raises."""
    script = (
        "import json, sys, numpy as np\n"
        "from tokscore.analytics import TopK, topk_limits\n"
        "sides = json.loads(sys.argv[1])\n"
        "ids = np.tile(np.arange(4), (len(sides[0]), 1))\n"
        "lists = [TopK(ids[:, : len(side[0])], np.array(side), None, 4) for side in sides]\n"
        f"columns = topk_limits(*lists, alphas={ALPHAS}).columns\n"
        "print(json.dumps({name: column.tolist() for name, column in columns.items()}))\n"
    )
    moved = [with_log_ratio(BASE, index, x) for index in (0, 2) for x in LOG_RATIOS]
    sides = [[*moved, *[BASE] * len(moved)], [*[BASE] * len(moved), *moved]]
    command = [sys.executable, "-c", script, json.dumps(sides)]
    interpreted, compiled = (
        json.loads(
            subprocess.run(
                command,
                env={**os.environ, "NUMBA_DISABLE_JIT": flag},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for flag in ("1", "0")
    )
    for name, column in compiled.items():
        np.testing.assert_allclose(interpreted[name], column, rtol=1e-14, atol=1e-14, err_msg=name)
