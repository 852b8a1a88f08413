"""Intervals contain the value over the whole vocabulary, whatever float32 storage rounds away."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics import TopK, topk_divergences, topk_limits

FloatArray = NDArray[np.float64]
VOCAB_SIZE = 1000


def logits(kind: str, rng: np.random.Generator, n: int) -> FloatArray:
    match kind:
        case "dirichlet":
            p = rng.dirichlet(np.full(VOCAB_SIZE, 0.05), n) + 1e-12
        case "zipf":
            ranks = rng.permuted(np.tile(np.arange(1.0, VOCAB_SIZE + 1), (n, 1)), axis=1)
            p = ranks**-1.3
        case _:
            p = np.exp(rng.normal(0, 4, (n, VOCAB_SIZE)))
    values: FloatArray = np.log(p)
    return values


def log_softmax(values: FloatArray) -> FloatArray:
    shifted = values - values.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def exact(log_p: FloatArray, log_q: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    p, q = np.exp(log_p), np.exp(log_q)
    log_m = np.log(alpha * p + (1 - alpha) * q)
    js = alpha * (p * (log_p - log_m)).sum(axis=1) + (1 - alpha) * (q * (log_q - log_m)).sum(axis=1)
    return (p * (log_p - log_q)).sum(axis=1), (q * (log_q - log_p)).sum(axis=1), js


def stored(logprobs: FloatArray, k: int, token_ids: NDArray[np.int64]) -> TopK:
    ids = np.argsort(-logprobs, axis=1)[:, :k]
    rounded = logprobs.astype(np.float32)
    realised = rounded[np.arange(len(ids)), token_ids]
    return TopK(ids, np.take_along_axis(rounded, ids, axis=1), realised, VOCAB_SIZE)


def violations(kind: str, k: int, noise: float, n: int, seed: int) -> int:
    rng = np.random.default_rng([seed, k])
    teacher_logits = logits(kind, rng, n)
    log_p = log_softmax(teacher_logits)
    log_q = log_softmax(teacher_logits + rng.normal(0, noise, log_p.shape))
    token_ids = rng.integers(0, VOCAB_SIZE, n)
    both = topk_divergences(
        stored(log_p, k, token_ids), stored(log_q, k, token_ids), alpha=0.3, token_ids=token_ids
    )
    found = 0
    for bounds, value in zip(both, exact(log_p, log_q, 0.3), strict=True):
        # 1e-14: the error of the sum over the vocabulary itself.
        found += int(np.count_nonzero((value < bounds.lower - 1e-14) | (value > bounds.upper + 1e-14)))
    return found


@pytest.mark.parametrize("kind", ["dirichlet", "zipf", "gaussian"])
@pytest.mark.parametrize("k", [5, 20, 100])
@pytest.mark.parametrize("noise", [1e-7, 0.01, 0.5, 4.0])
def test_no_interval_misses_the_exact_value(kind: str, k: int, noise: float) -> None:
    assert violations(kind, k, noise, n=150, seed=0) == 0


@pytest.mark.parametrize("noise", [1e-7, 0.5])
def test_no_interval_of_a_whole_vocabulary_misses_the_exact_value(noise: float) -> None:
    assert violations("gaussian", VOCAB_SIZE, noise, n=100, seed=1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dirichlet", "zipf", "gaussian"])
@pytest.mark.parametrize("k", [5, 20, 100])
def test_no_interval_misses_the_exact_value_in_a_long_sweep(kind: str, k: int) -> None:
    for seed, noise in enumerate((0.0, 1e-7, 1e-5, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)):
        assert violations(kind, k, noise, n=1100, seed=seed + 10) == 0


@pytest.mark.slow
def test_no_interval_misses_any_exact_value_in_100_000_cases() -> None:
    rng = np.random.default_rng(9)
    n_cases = n_missed = 0
    widths: dict[str, list[FloatArray]] = {}
    for vocab_size, n in ((1_000, 500), (50_000, 20)):
        while n_cases < (95_000 if vocab_size == 1_000 else 100_000):
            kind, k = (
                str(rng.choice(["dirichlet", "zipf", "gaussian"])),
                int(rng.choice([5, 10, 20, 50, 100])),
            )
            match kind:
                case "dirichlet":
                    raw = np.log(rng.dirichlet(np.full(vocab_size, 0.05), n) + 1e-12)
                case "zipf":
                    ranks = np.argsort(rng.random((n, vocab_size)), axis=1) + 1.0
                    raw = -1.3 * np.log(ranks)
                case _:
                    raw = rng.normal(0, 4, (n, vocab_size))
            log_p = log_softmax(raw)
            log_q = log_softmax(raw + rng.normal(0, rng.choice([1e-3, 0.1, 0.5, 2.0]), raw.shape))
            token_ids = rng.integers(0, vocab_size, n)
            sides = [stored(each, k, token_ids)._replace(vocab_size=vocab_size) for each in (log_p, log_q)]
            limits = topk_limits(*sides, alphas=(0.3,), token_ids=token_ids)
            p, q = np.exp(log_p), np.exp(log_q)
            log_m = np.log(0.3 * p + 0.7 * q)
            kl_values = exact(log_p, log_q, 0.3)
            for name, bounds, value in (
                ("KL(T||S)", limits.kl_teacher_student, kl_values[0]),
                ("KL(S||T)", limits.kl_student_teacher, kl_values[1]),
                ("GJS", limits.gjs(0.3), kl_values[2]),
                ("skew KL", limits.skew_kl(0.3), (p * (log_p - log_m)).sum(axis=1)),
                ("TV", limits.total_variation, np.abs(p - q).sum(axis=1) / 2),
                ("entropy", limits.entropy_teacher, -(p * log_p).sum(axis=1)),
            ):
                slack = 1e-12 * (1 + value)  # the error of the sum over the vocabulary itself
                n_missed += int(
                    np.count_nonzero((value < bounds.lower - slack) | (value > bounds.upper + slack))
                )
                widths.setdefault(name, []).append(value - bounds.lower)
            n_cases += n
    for name, each in widths.items():
        print(f"{name}: the value is {np.concatenate(each).mean():.4f} above the lower limit on average")
    assert n_cases >= 100_000
    assert n_missed == 0
