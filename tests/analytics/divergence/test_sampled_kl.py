"""Estimates of a KL from sampled tokens: their means over every token that could have been sampled."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics.divergence.sampled_kl import SampledKl, sampled_kl
from tokscore.analytics.divergence.topk import TokenError, TopK
from tokscore.dataset.choices import Sampler
from tokscore.dataset.errors import InputError

FloatArray = NDArray[np.float64]
VOCAB_SIZE = 9


def logprobs(seed: int) -> FloatArray:
    logits = np.random.default_rng(seed).normal(0, 2, VOCAB_SIZE)
    values: FloatArray = logits - np.log(np.exp(logits).sum())
    return values


def every_token(side: FloatArray, k: int) -> TopK:
    """The same position once for each token that might stand there."""
    top = np.argsort(-side)[:k]
    return TopK(np.tile(top, (VOCAB_SIZE, 1)), np.tile(side[top], (VOCAB_SIZE, 1)), side)


def estimates(teacher: FloatArray, student: FloatArray, sampled_by: Sampler, k: tuple[int, int]) -> SampledKl:
    return sampled_kl(
        every_token(teacher, k[0]),
        every_token(student, k[1]),
        np.arange(VOCAB_SIZE),
        sampled_by=sampled_by,
    )


@pytest.mark.parametrize("k", [(0, 0), (1, 1), (4, 2), (3, 5), (VOCAB_SIZE, VOCAB_SIZE)])
@pytest.mark.parametrize("sampled_by", list(Sampler))
def test_every_estimate_has_the_kl_of_the_sampler_from_the_other_as_its_mean(
    sampled_by: Sampler, k: tuple[int, int]
) -> None:
    for seed in range(20):
        teacher, student = logprobs(seed), logprobs(seed + 1000)
        found = estimates(teacher, student, sampled_by, k)
        p, q = (teacher, student) if sampled_by is Sampler.TEACHER else (student, teacher)
        kl_nats = sum(np.exp(a) * (a - b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
        for values in (found.k1, found.k3, found.topk):
            assert np.exp(p) @ values == pytest.approx(kl_nats, abs=1e-12)


def test_the_direction_is_named_and_never_turned() -> None:
    teacher, student = np.log([0.9, 0.1]), np.log([0.5, 0.5])
    lists = TopK(np.empty((1, 0), np.int64), np.empty((1, 0)))
    sides = (lists._replace(realised=teacher[:1]), lists._replace(realised=student[:1]))
    by_teacher = sampled_kl(*sides, np.array([0]), sampled_by=Sampler.TEACHER)
    by_student = sampled_kl(*sides, np.array([0]), sampled_by=Sampler.STUDENT)
    assert by_teacher.direction == "kl_teacher_student"
    assert by_student.direction == "kl_student_teacher"
    assert by_teacher.k1 == pytest.approx([np.log(0.9 / 0.5)])
    assert by_student.k1 == pytest.approx([np.log(0.5 / 0.9)])


def test_a_token_outside_a_list_adds_its_own_ratio_to_the_known_part() -> None:
    teacher, student = np.log([0.5, 0.3, 0.15, 0.05]), np.log([0.1, 0.6, 0.05, 0.25])
    # Shared: id 1 only. Id 0 is in the teacher's list alone, id 3 in the student's, id 2 in neither.
    lists = [np.array([[0, 1]] * 4), np.array([[1, 3]] * 4)]
    sides = [TopK(ids, side[ids], side) for ids, side in zip(lists, (teacher, student), strict=True)]
    found = sampled_kl(*sides, np.arange(4), sampled_by=Sampler.TEACHER).topk
    known = 0.3 * np.log(0.3 / 0.6)
    assert found.tolist() == pytest.approx(
        [known + np.log(5), known, known + np.log(3), known + np.log(0.2)], abs=1e-15
    )


def test_longer_lists_leave_less_to_chance() -> None:
    def variance(k: int) -> float:
        total = 0.0
        for seed in range(20):
            teacher, student = logprobs(seed), logprobs(seed + 1000)
            p, values = np.exp(student), estimates(teacher, student, Sampler.STUDENT, (k, k)).topk
            total += p @ (values - p @ values) ** 2
        return total

    none, most, whole = variance(0), variance(7), variance(VOCAB_SIZE)
    assert whole < 1e-24
    assert most < 0.9 * none


def test_k3_is_never_negative_and_a_model_against_itself_is_exactly_0() -> None:
    teacher, student = logprobs(1), logprobs(2)
    assert (estimates(teacher, student, Sampler.STUDENT, (3, 3)).k3 >= 0).all()
    found = estimates(teacher, teacher, Sampler.TEACHER, (3, 3))
    for values in (found.k1, found.k3, found.topk):
        assert not values.any()


def test_padding_is_no_entry() -> None:
    ids, realised = np.array([[0, -1]]), np.log([0.5])
    side = TopK(ids, np.array([[np.log(0.5), np.nan]]), realised)
    found = sampled_kl(
        side, side._replace(realised=np.log([0.25])), np.array([-1]), sampled_by=Sampler.TEACHER
    )
    assert found.topk == pytest.approx([np.log(2)])


def test_a_token_that_the_other_model_rules_out_is_infinitely_far() -> None:
    certain, other = np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])
    token = np.array([0])
    sides = [TopK(np.array([[0, 1]]), side[None], side[:1]) for side in (certain, other)]
    found = sampled_kl(*sides, token, sampled_by=Sampler.TEACHER)
    assert [found.k1[0], found.k3[0], found.topk[0]] == [np.inf] * 3
    with pytest.raises(TokenError, match="student, token 0: its logprob is -inf"):
        sampled_kl(*sides, token, sampled_by=Sampler.STUDENT)


def test_logprobs_that_cannot_be_are_named() -> None:
    good = TopK(np.array([[0, 1], [0, 1]]), np.log([[0.5, 0.5], [0.5, 0.5]]), np.log([0.5, 0.5]))
    tokens = np.array([0, 1])
    for bad, message in [
        (good._replace(realised=np.array([-1.0, np.nan])), "student, token 1: a logprob is nan"),
        (good._replace(realised=np.array([0.5, -1.0])), "student, token 0: a logprob is 0.5"),
        (
            good._replace(logprobs=np.array([[-1.0, -1.0], [-1.0, np.inf]])),
            "student, token 1: a logprob is inf",
        ),
        (good._replace(ids=np.array([[0, 1], [1, 1]])), "student, token 1: an id is listed twice"),
    ]:
        with pytest.raises(TokenError, match=message):
            sampled_kl(good, bad, tokens, sampled_by=Sampler.TEACHER)
    with pytest.raises(InputError, match="student has no realised logprobs"):
        sampled_kl(good, good._replace(realised=None), tokens, sampled_by=Sampler.TEACHER)
    with pytest.raises(InputError, match="with 3 tokens"):
        sampled_kl(good, good, np.array([0, 1, 1]), sampled_by=Sampler.TEACHER)
