"""Intervals contain the value over the whole vocabulary, whatever float32 storage rounds away."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tokscore.analytics import TopK, topk_divergences

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
