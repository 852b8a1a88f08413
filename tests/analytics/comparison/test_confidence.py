"""Confidence limits of the means of a group, from its sums by conversation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from tokscore.analytics import diff_report as diff
from tokscore.analytics.comparison.confidence import confidence_of, confidence_of_means, kept_names
from tokscore.analytics.comparison.reduction import Clusters
from tokscore.analytics.statistics.bootstrap import clustered_confidence
from tokscore.cli.app import app

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
FloatArray = NDArray[np.float64]
ROLES = [("user", 4), ("assistant", 6), ("tool", 2), ("assistant", 3)]


@pytest.fixture
def both(conversation: Make, write_dataset: Make) -> tuple[Any, Any]:
    """Nine conversations under two models."""
    teacher = [conversation(f"c{i}", ROLES[: 1 + i % 4], seed=i) for i in range(9)]
    student = [conversation(c.conversation_id, c.messages, seed=i, model=1) for i, c in enumerate(teacher)]
    return write_dataset(teacher), write_dataset(student)


@pytest.mark.slow
def test_confidence_limits_enclose_the_interval_of_means(both: tuple[Any, Any]) -> None:
    total = diff(*both).total
    found = {each.name: each for each in total.confidence}
    assert found["gjs_0.5"].n_conversations == 9
    assert found["gjs_0.5"].is_rough
    assert found["gjs_0.5"].lower < total.gjs.lower < total.gjs.upper < found["gjs_0.5"].upper  # type: ignore[operator]
    assert found["kl_teacher_student"].upper is None


def test_confidence_limits_stay_in_the_range_of_the_measure() -> None:
    names = kept_names([0.2])
    sums, n_tokens = np.zeros((20, len(names))), 100 + np.arange(20)
    largest = {
        "total_variation": 1.0,
        "gjs_0.2": -0.2 * math.log(0.2) - 0.8 * math.log(0.8),
        "skew_kl_0.2": math.log(5),
    }

    def limits(share: float) -> dict[str, tuple[float | None, float | None]]:
        # One conversation unlike the others leaves limits beyond the end of the range.
        for index, name in enumerate(names):
            measure = name.removesuffix(".lower").removesuffix(".upper")
            sums[:, index] = n_tokens * largest.get(measure, 1.0) * np.r_[np.full(19, share), 0.5]
        columns = dict(zip(names, sums.T, strict=True))
        clusters = Clusters([(str(i), 0) for i in range(20)], columns, n_tokens)
        return {name: each[:2] for name, each in confidence_of(clusters, [0.2], 999)}

    low, high = limits(1e-4), limits(1.0)
    assert low["log_ratio"][0] < 0  # type: ignore[operator]
    assert [low[name][0] for name in (*largest, "kl_teacher_student")] == [0.0] * 4
    assert [high[name][1] for name in largest] == pytest.approx(list(largest.values()), rel=1e-15)
    assert high["log_ratio"][1] > 1  # type: ignore[operator]


def test_divergences_have_no_p_values(both: tuple[Any, Any]) -> None:
    confidence = diff(*both).to_dict()["total"]["confidence"]  # type: ignore[index]
    tested = {name for name, limits in confidence.items() if limits.keys() & {"p_value", "adjusted_p_value"}}
    assert tested == {"log_ratio", "delta_p"} < confidence.keys()


def test_confidence_limits_of_estimates_are_per_sampled_token_of_each_conversation(
    both: tuple[Any, Any],
) -> None:
    names = kept_names([0.5], with_estimates=True)
    rng = np.random.default_rng(3)
    n_tokens, n_sampled = rng.integers(20, 60, 40), rng.integers(0, 20, 40)
    sums = np.zeros((40, len(names)))
    sums[:, names.index("n_estimated")] = n_sampled
    values = {"estimate_k1": rng.normal(0.3, 0.1, 40), "estimate_k3": np.full(40, 0.2)}
    for name, each in values.items():
        sums[:, names.index(name)] = each * n_sampled
    sums[5, names.index("estimate_topk")] = np.inf
    columns = dict(zip(names, sums.T, strict=True))
    clusters = Clusters([(f"{i:02}", 0) for i in range(40)], columns, n_tokens)
    found = dict(confidence_of(clusters, [0.5], 999, with_estimates=True))
    [k1] = clustered_confidence(["k1"], (values["estimate_k1"] * n_sampled)[None], n_sampled)
    assert found["estimate_k1"] == k1
    assert k1.n_conversations == np.count_nonzero(n_sampled) < 40
    assert found["estimate_k3"][:2] == pytest.approx((0.2, 0.2))
    assert found["estimate_topk"][:3] == (None, None, None)
    total = diff(*both, sampled_by="student").total
    limits = {each.name: each for each in total.confidence}
    assert total.estimate is not None
    assert limits["estimate_k3"].lower < total.estimate.k3 < limits["estimate_k3"].upper  # type: ignore[operator]
    assert limits["estimate_k1"].p_value is None
    assert not any(each.name.startswith("estimate") for each in diff(*both).total.confidence)


def test_branches_of_a_conversation_are_drawn_together_and_infinite_means_have_no_limits() -> None:
    names = ["total_variation", "kl_teacher_student", "kl_student_teacher"]
    rng = np.random.default_rng(4)
    n_tokens = rng.integers(5, 9, 30)
    sums = rng.uniform(0, 1, (30, 3)) * n_tokens[:, None]
    sums[7, 2] = np.inf
    columns = dict(zip(names, sums.T, strict=True))
    branches = Clusters([(f"{i // 2:02}", i % 2) for i in range(30)], columns, n_tokens)
    found = {each.name: each for each in confidence_of_means(branches, [0.5], 999)}
    pairs = sums[::2] + sums[1::2], n_tokens[::2] + n_tokens[1::2]
    expected = clustered_confidence(names[:2], pairs[0][:, :2].T, pairs[1])
    assert [found[name][1:3] for name in names[:2]] == [each[:2] for each in expected]
    assert found["total_variation"].n_conversations == 15
    assert found["kl_student_teacher"][1:3] == (None, None)


def test_a_sampler_that_did_not_sample_the_tokens_is_found_out(
    conversation: Make, write_dataset: Make
) -> None:
    scored = [conversation(f"c{i}", ROLES, seed=i) for i in range(9)]

    def likelier(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return columns | {"logprob": pc.multiply(columns["logprob"], 0.5)}

    teacher, student = write_dataset(scored, top_k=0, columns=likelier), write_dataset(scored, top_k=0)
    arguments = ["diff", str(teacher), str(student), "--sampled-by"]
    wrong, right = (CliRunner().invoke(app, [*arguments, side]) for side in ("student", "teacher"))
    assert (wrong.exit_code, right.exit_code) == (0, 0), wrong.output
    assert "the student did not sample these tokens" in wrong.stderr
    assert "did not sample these tokens" not in right.stderr
    assert "k1, 95 %" in right.stdout


def test_sums_too_large_for_a_bootstrap_have_no_limits(conversation: Make, write_dataset: Make) -> None:
    scored = [conversation(f"c{i}", ROLES * (i + 1), seed=i) for i in range(4)]

    def with_logprob(value: float) -> Any:
        def change(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
            logprobs = pa.array([None, *[value] * (len(columns["logprob"]) - 1)], pa.float32())
            return columns | {"logprob": logprobs}

        return write_dataset(scored, top_k=0, columns=change)

    total = diff(with_logprob(-400.0), with_logprob(-1.0), sampled_by="teacher").total
    limits = {each.name: each for each in total.confidence}
    assert limits["estimate_k1"][1:3] == pytest.approx((-399.0, -399.0))
    assert limits["estimate_k3"][1:3] == (None, None)


def test_the_limits_of_the_total_do_not_depend_on_the_groups(conversation: Make, write_dataset: Make) -> None:
    teacher = [conversation(f"c{i}", seed=i) for i in range(40)]
    student = [conversation(c.conversation_id, c.messages, seed=i, model=1) for i, c in enumerate(teacher)]
    sides = write_dataset(teacher), write_dataset(student)
    # By conversation there are so many groups that each would take more replicates.
    assert diff(*sides).total == diff(*sides, by="conversation_id").total == diff(*sides, by="position").total
