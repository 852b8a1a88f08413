"""The figures by which quantised models are judged, as llama.cpp's perplexity tool defines them.

The first model is the base, the second Q. Figures have two standard errors: over tokens, as there, which
takes tokens for independent, and over conversations.

Source:
    llama.cpp, tools/perplexity/perplexity.cpp, with --kl-divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.exact.figures import Figure, Summary
from tokscore.analytics.exact.moments import (
    BASE,
    DELTA,
    KLD,
    MEANS,
    PAIRS,
    RATIO,
    SAME_TOP,
    SQUARED_DELTA,
    Covariances,
    Moments,
    Q,
)
from tokscore.analytics.statistics.percentiles import percentiles

# Shares of the percentiles, from the largest value down.
_KLD_SHARES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0)
_DELTA_SHARES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001, 0.0)
_NAMED_SHARES = {1.0: ("Maximum", "maximum"), 0.5: ("Median", "median"), 0.0: ("Minimum", "minimum")}


def summarise(moments: Moments, read: Callable[[str], Iterable[FloatArray]]) -> Summary:
    """The figures of some tokens.

    Args:
        moments: Of the tokens.
        read: Gives the values of a measure for all of them, in pieces.
    """
    return Summary(
        moments.n_tokens,
        moments.n_conversations,
        tuple(_perplexity(moments)),
        tuple(_kld(moments, read)),
        tuple(_delta(moments, read)),
    )


def summary_names() -> tuple[str, ...]:
    """All names of `Summary.flat`, with the standard errors that few tokens do not have."""
    known = Moments(2, 2, dict.fromkeys(MEANS, 0.0), *(dict.fromkeys(PAIRS, 1.0),) * 2)
    return tuple(summarise(known, lambda _name: [np.zeros(2)]).flat())


def _figure(
    name: str, label: str, value: float, variances: Iterable[float] = (), *, is_share: bool = False
) -> Figure:
    """One with standard errors, the roots of variances over tokens and over conversations."""
    errors = (finite(_root(variance)) for variance in variances)
    return Figure(name, label, finite(value), next(errors, None), next(errors, None), is_share)


def _root(variance: float) -> float:
    # Rounding may take a variance of 0 below it.
    return math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.nan


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _perplexity(moments: Moments) -> Iterable[Figure]:
    """A perplexity is the exponential of a mean, so that its error is that of the mean times itself."""
    means = moments.means
    ppl_q, ppl_base, factor = _exp(-means[Q]), _exp(-means[BASE]), _exp(means[RATIO])
    gap = ppl_q - ppl_base

    def variances(of: Callable[[Covariances], float]) -> list[float]:
        return [of(each) for each in moments.covariances]

    yield _figure("mean_ppl_q", "Mean PPL(Q)", ppl_q, variances(lambda c: ppl_q**2 * c[Q, Q]))
    yield _figure(
        "mean_ppl_base", "Mean PPL(base)", ppl_base, variances(lambda c: ppl_base**2 * c[BASE, BASE])
    )
    # The base's logprob is Q's and the ratio.
    tokens = moments.over_tokens
    spread = _root(tokens[Q, Q]) * _root(tokens[BASE, BASE])
    correlation = (tokens[Q, Q] + tokens[Q, RATIO]) / spread if spread else math.nan
    yield _figure("cor_ln_ppl", "Cor(ln(PPL(Q)), ln(PPL(base)))", correlation, is_share=True)
    of_ratio = variances(lambda c: c[RATIO, RATIO])
    yield _figure("mean_ln_ppl_ratio", "Mean ln(PPL(Q)/PPL(base))", means[RATIO], of_ratio)
    yield _figure(
        "mean_ppl_ratio", "Mean PPL(Q)/PPL(base)", factor, [factor**2 * variance for variance in of_ratio]
    )
    yield _figure(
        "mean_ppl_difference",
        "Mean PPL(Q)-PPL(base)",
        gap,
        variances(
            lambda c: gap**2 * c[Q, Q] + ppl_base**2 * c[RATIO, RATIO] - 2 * gap * ppl_base * c[Q, RATIO]
        ),
    )


def _kld(moments: Moments, read: Callable[[str], Iterable[FloatArray]]) -> Iterable[Figure]:
    variances = [each[KLD, KLD] for each in moments.covariances]
    yield _figure("mean_kld", "Mean KLD", moments.means[KLD], variances)
    yield from _percentiles("kld", "KLD", _KLD_SHARES, lambda: read(KLD))


def _delta(moments: Moments, read: Callable[[str], Iterable[FloatArray]]) -> Iterable[Figure]:
    means, covariances = moments.means, moments.covariances

    # The measure is base less Q.
    def differences() -> Iterable[FloatArray]:
        return (0.0 - values for values in read(DELTA))

    yield _share("mean_delta_p", "Mean Δp", 0.0 - means[DELTA], [each[DELTA, DELTA] for each in covariances])
    for figure in _percentiles("delta_p", "Δp", _DELTA_SHARES, differences):
        yield figure._replace(is_share=True)
    rms = math.sqrt(means[SQUARED_DELTA])
    of_squares = [each[SQUARED_DELTA, SQUARED_DELTA] for each in covariances]
    of_rms = [variance / (4 * rms**2) if rms else 0.0 for variance in of_squares]
    yield _share("rms_delta_p", "RMS Δp", rms, of_rms)
    yield _share(
        "same_top_p", "Same top p", means[SAME_TOP], [each[SAME_TOP, SAME_TOP] for each in covariances]
    )


def _share(name: str, label: str, value: float, variances: Iterable[float]) -> Figure:
    return _figure(name, label, value, variances, is_share=True)


def _percentiles(
    name: str, label: str, shares: Sequence[float], read: Callable[[], Iterable[FloatArray]]
) -> Iterable[Figure]:
    values = percentiles(read, shares) or [math.nan] * len(shares)
    for share, value in zip(shares, values, strict=True):
        shown, key = _NAMED_SHARES.get(share, (f"{100 * share:.1f}%", f"p{100 * share:g}".replace(".", "_")))
        yield _figure(f"{key}_{name}", f"{shown} {label}", value)
