"""Advantages of a student's tokens from a teacher with other tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.analytics import advantages
from tokscore.analytics.divergence.topk import TokenError
from tokscore.dataset.errors import InputError, UsageError

TEACHER, STUDENT = [b"Hel", b"lo", b" there"], [b"Hello", b" th", b"ere"]
LOGPROBS = np.array([-1.0, -0.5, -2.0]), np.array([-1.25, -3.0, -0.25])


@pytest.mark.parametrize(
    ("on", "expected"), [("last", [-0.25, 0.0, 1.25]), ("spread", [-0.25, 0.625, 0.625])]
)
def test_the_log_ratio_of_a_span_goes_where_it_is_wanted(on: str, expected: list[float]) -> None:
    np.testing.assert_allclose(
        advantages(*LOGPROBS, TEACHER, STUDENT, on=on, align="text"), expected, atol=1e-15
    )


@given(st.lists(st.tuples(st.sampled_from("ab\u4f60 "), st.floats(-20, 0), st.floats(-20, 0)), min_size=1))
def test_equal_tokens_have_the_advantages_of_tokens(made: list[tuple[str, float, float]]) -> None:
    tokens = [text.encode() for text, _, _ in made]
    one, other = (np.array([each[i] for each in made]) for i in (1, 2))
    for on in ("last", "spread"):
        np.testing.assert_array_equal(
            advantages(one, other, tokens, tokens, on=on, align="text"), advantages(one, other)
        )


def test_tokens_with_other_characters_have_none() -> None:
    found = advantages(*LOGPROBS, [b"\nHi", b" the", b"re"], [b"Hi", b" th", b"ere"], align="text")
    np.testing.assert_array_equal(np.isnan(found), [True, False, False])
    assert found[2] == (-0.5 - 2.0) - (-3.0 - 0.25)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="teacher logprobs have shape \\(3,\\) for 2 tokens"):
        advantages(*LOGPROBS, TEACHER[:2], STUDENT, align="text")
    with pytest.raises(InputError, match="of other texts"):
        advantages(*LOGPROBS, [b"One", b" two", b"."], STUDENT, align="text")
    with pytest.raises(UsageError, match="on"):
        advantages(*LOGPROBS, TEACHER, STUDENT, on="first", align="text")  # type: ignore[call-overload]
    with pytest.raises(TokenError, match="both logprobs are -inf"):
        advantages(np.full(3, -np.inf), np.full(3, -np.inf), TEACHER, STUDENT, align="text")
    for arguments in ([*LOGPROBS, TEACHER, STUDENT], [*LOGPROBS, None, STUDENT]):
        with pytest.raises(UsageError, match="bytes of tokens are given"):
            advantages(*arguments)
    with pytest.raises(UsageError, match="needs `teacher_tokens`"):
        advantages(*LOGPROBS, TEACHER, align="text")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="expected tokens or text"):
        advantages(*LOGPROBS, align="content")  # type: ignore[call-overload]
