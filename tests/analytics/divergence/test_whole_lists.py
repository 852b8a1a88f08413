"""Intervals contain the value over the whole vocabulary, whatever float32 storage rounds away."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics import TopK, topk_limits

FloatArray = NDArray[np.float64]
VOCAB_SIZE = 1000
ALPHA = 0.3


def logits(kind: str, rng: np.random.Generator, n: int, vocab_size: int) -> FloatArray:
    match kind:
        case "dirichlet":
            p = rng.dirichlet(np.full(vocab_size, 0.05), n) + 1e-12
        case "zipf":
            ranks = rng.permuted(np.tile(np.arange(1.0, vocab_size + 1), (n, 1)), axis=1)
            p = ranks**-1.3
        case _:
            p = np.exp(rng.normal(0, 4, (n, vocab_size)))
    values: FloatArray = np.log(p)
    return values


def log_softmax(values: FloatArray) -> FloatArray:
    shifted = values - values.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def exact(log_p: FloatArray, log_q: FloatArray) -> dict[str, FloatArray]:
    """Every measure over the whole vocabulary, each of shape [tokens]."""
    p, q = np.exp(log_p), np.exp(log_q)
    log_m = np.log(ALPHA * p + (1 - ALPHA) * q)
    skew_kl, other_skew_kl = (p * (log_p - log_m)).sum(axis=1), (q * (log_q - log_m)).sum(axis=1)
    return {
        "KL(T||S)": (p * (log_p - log_q)).sum(axis=1),
        "KL(S||T)": (q * (log_q - log_p)).sum(axis=1),
        "GJS": ALPHA * skew_kl + (1 - ALPHA) * other_skew_kl,
        "skew KL": skew_kl,
        "TV": np.abs(p - q).sum(axis=1) / 2,
        "entropy T": -(p * log_p).sum(axis=1),
        "entropy S": -(q * log_q).sum(axis=1),
    }


def stored(logprobs: FloatArray, k: int, token_ids: NDArray[np.int64]) -> TopK:
    vocab_size = logprobs.shape[1]
    among = np.argpartition(-logprobs, min(k, vocab_size - 1), axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(logprobs, among, axis=1), axis=1)
    ids = np.take_along_axis(among, order, axis=1)
    rounded = logprobs.astype(np.float32)
    realised = rounded[np.arange(len(ids)), token_ids]
    return TopK(ids, np.take_along_axis(rounded, ids, axis=1), realised, vocab_size)


def misses(
    kind: str, k: int, noise: float, n: int, seed: int, vocab_size: int = VOCAB_SIZE
) -> dict[str, int]:
    """How many of n tokens have a value outside its interval, by measure; empty without any."""
    rng = np.random.default_rng([seed, k])
    teacher_logits = logits(kind, rng, n, vocab_size)
    log_p = log_softmax(teacher_logits)
    log_q = log_softmax(teacher_logits + rng.normal(0, noise, log_p.shape))
    token_ids = rng.integers(0, vocab_size, n)
    sides = [stored(each, k, token_ids) for each in (log_p, log_q)]
    limits = topk_limits(*sides, alphas=(ALPHA,), token_ids=token_ids)
    intervals = {
        "KL(T||S)": limits.of("kl_teacher_student"),
        "KL(S||T)": limits.of("kl_student_teacher"),
        "GJS": limits.of("gjs", ALPHA),
        "skew KL": limits.of("skew_kl", ALPHA),
        "TV": limits.of("total_variation"),
        "entropy T": limits.of("entropy_teacher"),
        "entropy S": limits.of("entropy_student"),
    }
    found: dict[str, int] = {}
    for name, value in exact(log_p, log_q).items():
        slack = 1e-14 * max(1, vocab_size // VOCAB_SIZE) * (1 + value)  # the error of the sum itself
        lower, upper = intervals[name].lower - slack, intervals[name].upper + slack
        found[name] = int(np.count_nonzero((value < lower) | (value > upper)))
    return {name: n_missed for name, n_missed in found.items() if n_missed}


@pytest.mark.parametrize("kind", ["dirichlet", "zipf", "gaussian"])
@pytest.mark.parametrize("k", [5, 20, 100])
@pytest.mark.parametrize("noise", [1e-7, 0.01, 0.5, 4.0])
def test_no_interval_misses_the_exact_value(kind: str, k: int, noise: float) -> None:
    assert misses(kind, k, noise, n=50, seed=0) == {}


@pytest.mark.parametrize("noise", [1e-7, 0.5])
def test_no_interval_of_a_whole_vocabulary_misses_the_exact_value(noise: float) -> None:
    assert misses("gaussian", VOCAB_SIZE, noise, n=100, seed=1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dirichlet", "zipf", "gaussian"])
@pytest.mark.parametrize("k", [5, 20, 100])
def test_no_interval_misses_the_exact_value_in_a_long_sweep(kind: str, k: int) -> None:
    for seed, noise in enumerate((0.0, 1e-7, 1e-5, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)):
        assert misses(kind, k, noise, n=400, seed=seed + 10) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dirichlet", "zipf", "gaussian"])
def test_no_interval_misses_the_exact_value_over_50_000_ids(kind: str) -> None:
    for seed, noise in enumerate((1e-3, 0.1, 2.0)):
        assert misses(kind, 20, noise, n=40, seed=seed + 30, vocab_size=50_000) == {}
