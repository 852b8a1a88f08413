"""Advantages of realised tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokscore.analytics import Comparison, advantages
from tokscore.dataset.errors import InputError

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import


@pytest.mark.parametrize("top_k", [0, 5])
def test_advantages_are_those_of_the_whole_distributions_for_any_k(
    conversation: Make, write_dataset: Make, top_k: int
) -> None:
    sides = [conversation("c", [("user", 30)], model=model) for model in (0, 1)]
    (batch,) = Comparison(*(write_dataset([side], top_k=top_k) for side in sides))
    teacher, student = (side.logprobs[range(1, 31), side.token_ids[1:]] for side in sides)
    found = advantages(batch.measures["teacher_logprob"], batch.measures["student_logprob"])
    np.testing.assert_allclose(found, teacher - student, atol=1e-6)
    np.testing.assert_array_equal(advantages(teacher, student), teacher - student)


def test_float32_is_subtracted_in_float64_and_infinities_stay() -> None:
    teacher = np.array([[-1e-8, -math.inf], [-20.0, -3.0]], np.float32)
    student = np.array([[-20.0, -1.0], [-1e-8, -math.inf]], np.float32)
    found = advantages(teacher, student)
    tiny = float(np.float32(1e-8))
    assert found.dtype == np.float64
    assert found.tolist() == [[20.0 - tiny, -math.inf], [tiny - 20.0, math.inf]]


@pytest.mark.parametrize(
    ("teacher", "student", "message"),
    [
        ([-1.0, math.nan], [-1.0, -1.0], "teacher, token 1: its logprob is nan"),
        ([-1.0, -1.0], [0.5, -1.0], r"student, token 0: its logprob is 0\.5"),
        ([-1.0], [-1.0, -1.0], r"shape \(1,\), student logprobs \(2,\)"),
        ([-math.inf], [-math.inf], "token 0: both logprobs are -inf"),
        (np.zeros(1, np.float16), [-1.0], "teacher logprobs are float16"),
    ],
)
def test_what_is_no_logprob_is_refused(teacher: Any, student: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        advantages(np.asarray(teacher), np.asarray(student))
