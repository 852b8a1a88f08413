"""Two distributions compared over the whole vocabulary, against slow sums and against other libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import entr, rel_entr

from tests.scoring.samples import random_ids
from tokscore.scoring import TokenSequence, plan_engine

torch = pytest.importorskip("torch")
from tokscore.scoring.exact.divergences import exact_divergences  # noqa: E402 (needs torch)
from tokscore.scoring.exact.pair import ModelPair  # noqa: E402 (likewise)

ALPHA = 0.3


def full_logprobs(model: Path, token_ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of every id behind each token but the last; transformers on its own, in float64."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = loaded(input_ids=torch.tensor(token_ids[None].tolist()), use_cache=False).logits[0, :-1]
    values: np.ndarray[Any, Any] = torch.log_softmax(logits, -1).numpy()
    return values


@pytest.mark.parametrize("student", ["llama", "longrope"])
def test_the_pair_equals_full_softmaxes_of_both_models_alone(
    tiny: Callable[[str], Path], student: str
) -> None:
    """Of sequences on both sides of the length where LongRoPE takes other positions, in one batch."""
    models = [tiny("llama"), tiny(student)]
    pair = ModelPair(
        *(plan_engine(str(each), engine="transformers", top_k=0) for each in models), alphas=[ALPHA]
    )
    sequences = [TokenSequence(key, random_ids(key, n)) for key, n in enumerate((120, 40, 65, 64, 9))]
    found = dict(pair.measure(sequences))
    pair.close()
    assert found.keys() == set(range(5))
    for sequence in sequences:
        p, q = (full_logprobs(model, sequence.token_ids) for model in models)
        m = np.log(ALPHA * np.exp(p) + (1 - ALPHA) * np.exp(q))
        values = found[sequence.key]
        rows = np.arange(len(p)), sequence.token_ids[1:]
        skew = (np.exp(p) * (p - m)).sum(1)
        expected = {
            "teacher_logprob": p[rows],
            "student_logprob": q[rows],
            "kl_teacher_student": (np.exp(p) * (p - q)).sum(1),
            "kl_student_teacher": (np.exp(q) * (q - p)).sum(1),
            "total_variation": np.abs(np.exp(p) - np.exp(q)).sum(1) / 2,
            "entropy_teacher": -(np.exp(p) * p).sum(1),
            "entropy_student": -(np.exp(q) * q).sum(1),
            "skew_kl": skew[None],
            "gjs": (ALPHA * skew + (1 - ALPHA) * (np.exp(q) * (q - m)).sum(1))[None],
        }
        for name, each in expected.items():
            np.testing.assert_allclose(getattr(values, name), each, atol=2e-4, err_msg=name)
        np.testing.assert_array_equal(values.same_top, p.argmax(1) == q.argmax(1))


def test_only_wanted_tokens_have_rows(tiny: Callable[[str], Path]) -> None:
    plan = plan_engine(str(tiny("llama")), engine="transformers", top_k=0)
    pair = ModelPair(plan, plan)
    wanted = np.arange(29) % 3 == 1
    ids = random_ids(1, 30)
    found = dict(pair.measure([TokenSequence(0, ids, wanted), TokenSequence(1, ids)]))
    pair.close()
    np.testing.assert_allclose(found[0].teacher_logprob, found[1].teacher_logprob[wanted], atol=1e-4)
    assert len(found[0].kl_teacher_student) == wanted.sum()


def test_the_exact_values_are_those_of_scipy() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = [(torch.randn(9, 400, generator=generator) * 4).double() for _ in range(2)]
    p, q = (torch.softmax(each, -1).numpy() for each in logits)
    values = exact_divergences(*logits, torch.zeros(9, dtype=torch.int64), alphas=(0.5,))
    expected = {
        "kl_teacher_student": rel_entr(p, q).sum(axis=1),
        "kl_student_teacher": rel_entr(q, p).sum(axis=1),
        "entropy_teacher": entr(p).sum(axis=1),
        "entropy_student": entr(q).sum(axis=1),
    }
    for name, each in expected.items():
        np.testing.assert_allclose(getattr(values, name), each, atol=1e-12)
    np.testing.assert_allclose(values.gjs[0], jensenshannon(p, q, axis=1) ** 2, atol=1e-12)
    np.testing.assert_allclose(values.skew_kl[0], rel_entr(p, (p + q) / 2).sum(axis=1), atol=1e-12)


def test_equal_logits_differ_by_exactly_nothing() -> None:
    logits = torch.randn(7, 300, generator=torch.Generator().manual_seed(1)) * 9
    values = exact_divergences(logits, logits, torch.zeros(7, dtype=torch.int64), alphas=(0.1, 0.3, 0.77))
    for column in (*values[2:5], values.gjs, values.skew_kl):
        assert not column.any()
    assert values.same_top.all()


def test_ids_that_one_model_rules_out() -> None:
    teacher = torch.tensor([[0.0, 0.0, -np.inf], [0.0, -1e4, -900.0]])
    student = torch.tensor([[0.0, -np.inf], [-1e4, 0.0]])
    values = exact_divergences(teacher, student, torch.tensor([0, 1]), alphas=(0.5,))
    np.testing.assert_allclose(values.kl_teacher_student, [np.inf, 1e4])
    np.testing.assert_allclose(values.kl_student_teacher, [np.log(2), 1e4])
    np.testing.assert_allclose(values.total_variation, [0.5, 1])
    np.testing.assert_allclose(
        values.gjs[0], [0.25 * np.log(2 / 3) + 0.25 * np.log(2) + 0.5 * np.log(4 / 3), np.log(2)]
    )
    assert values.same_top.tolist() == [True, False]


def test_the_first_of_equally_likely_ids_is_the_most_likely() -> None:
    teacher, student = torch.tensor([[1.0, 3.0, 3.0, 0.0]]), torch.tensor([[2.0, 5.0, 1.0, 5.0]])
    assert exact_divergences(teacher, student, torch.tensor([0])).same_top.tolist() == [True]
