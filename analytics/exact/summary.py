"""The figures by which quantised models are judged, as llama.cpp's perplexity tool defines them.

The first model is the base, the second Q. Every figure has two standard errors: over tokens, as there, which
takes them for independent, and over conversations, whose tokens are not.

Source:
    llama.cpp, tools/perplexity/perplexity.cpp, with --kl-divergence; errors of ratios by linearisation, after
    Cochran (1977), Sampling Techniques, chapters 6 and 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tokscore.analytics.comparison.confidence import by_conversation
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.statistics.percentiles import percentiles

# Shares of the percentiles, from the largest value down.
_KLD_SHARES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0)
_DELTA_SHARES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001, 0.0)
_NAMED_SHARES = {1.0: ("Maximum", "maximum"), 0.5: ("Median", "median"), 0.0: ("Minimum", "minimum")}

KLD, RATIO, DELTA, SAME_TOP = "kl_teacher_student", "log_ratio", "delta_p", "same_top"
_SQUARED_DELTA = "squared_delta_p"
# Means that the figures are made of.
_MEANS = ("student_logprob", "teacher_logprob", RATIO, KLD, DELTA, _SQUARED_DELTA, SAME_TOP)
# Pairs of them whose covariance is needed.
_PAIRS = (*((name, name) for name in _MEANS), ("student_logprob", RATIO))
KEPT = _MEANS  # columns whose sums by conversation are needed


class Figure(NamedTuple):
    """One figure.

    Attributes:
        name: In JSON and CSV.
        label: In tables.
        value: None where it is infinite or there are no tokens.
        se_tokens: Standard error over tokens; None where there is none.
        se_conversations: Over conversations; None with fewer than 2.
        is_share: Whether tables show it in percent.
    """

    name: str
    label: str
    value: float | None
    se_tokens: float | None = None
    se_conversations: float | None = None
    is_share: bool = False


class Summary(NamedTuple):
    """All figures of two models over the same tokens.

    Attributes:
        n_tokens: Compared.
        n_conversations: They are of.
        perplexity: Figures of the perplexities.
        kld: Of KL(base || Q), in nats.
        delta_p: Of Q's less base's probability of the token, and of the most likely ids.
    """

    n_tokens: int
    n_conversations: int
    perplexity: tuple[Figure, ...]
    kld: tuple[Figure, ...]
    delta_p: tuple[Figure, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All of them."""
        return (*self.perplexity, *self.kld, *self.delta_p)

    def to_dict(self) -> dict[str, object]:
        """For JSON: a figure without errors is a number."""
        counts = {"n_tokens": self.n_tokens, "n_conversations": self.n_conversations}
        return counts | {each.name: _json(each) for each in self.figures}

    def flat(self) -> dict[str, float | None]:
        """All numbers by name, standard errors as NAME.se_tokens and NAME.se_conversations."""
        found: dict[str, float | None] = {}
        for each in self.figures:
            found[each.name] = each.value
            if _has_errors(each):
                found |= {f"{each.name}.{name}": getattr(each, name) for name in _ERRORS}
        return found


_ERRORS = ("se_tokens", "se_conversations")


def _has_errors(figure: Figure) -> bool:
    return any(getattr(figure, name) is not None for name in _ERRORS)


def _json(figure: Figure) -> object:
    if not _has_errors(figure):
        return figure.value
    return {"value": figure.value, **{name: getattr(figure, name) for name in _ERRORS}}


def moment_columns(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The columns that a summary needs the sums of, beside the measures themselves."""
    columns = {SAME_TOP: values[SAME_TOP].astype(np.float64), _SQUARED_DELTA: values[DELTA] ** 2}
    known = {**values, **columns}
    with np.errstate(invalid="ignore", over="ignore"):
        products = {_product(*pair): known[pair[0]] * known[pair[1]] for pair in _PAIRS}
    return columns | {name: np.nan_to_num(column, nan=np.inf) for name, column in products.items()}


def _product(one: str, other: str) -> str:
    return f"{one} * {other}"


def summarise(group: Group, read: Callable[[str], Iterable[FloatArray]]) -> Summary:
    """The figures of the tokens of a group.

    Args:
        group: Sums of the measures and of `moment_columns`, with `KEPT` by conversation.
        read: Gives the values of a measure for all of these tokens, in pieces.
    """
    n = group.n_tokens
    sums, n_by_conversation = by_conversation(group.clusters)
    sums_of_all = {name: group.sums[name] for name in (*_MEANS, *(_product(*pair) for pair in _PAIRS))}
    # A sum has no sign where it is infinite.
    mean_of = {
        name: total / n if n and math.isfinite(total) else math.nan for name, total in sums_of_all.items()
    }
    means = {name: mean_of[name] for name in _MEANS}
    over_tokens = dict.fromkeys(_PAIRS, math.nan)
    if n > 1:
        over_tokens = {
            (one, other): (mean_of[_product(one, other)] - means[one] * means[other]) / (n - 1)
            for one, other in _PAIRS
        }
    over_conversations = dict.fromkeys(_PAIRS, math.nan)
    n_conversations = int(np.count_nonzero(n_by_conversation))
    if n_conversations > 1:
        with np.errstate(invalid="ignore"):
            rest = {name: sums[name] - means[name] * n_by_conversation for name in _MEANS}
            factor = n_conversations / (n_conversations - 1) / n**2
            over_conversations = {pair: factor * float(rest[pair[0]] @ rest[pair[1]]) for pair in _PAIRS}
    return Summary(
        n,
        n_conversations,
        _perplexity(means, over_tokens, over_conversations),
        _kld(means, over_tokens, over_conversations, read),
        _delta(means, over_tokens, over_conversations, read),
    )


_Covariances = Mapping[tuple[str, str], float]


def _figure(
    name: str,
    label: str,
    value: float,
    over_tokens: float | None = None,
    over_conversations: float | None = None,
    *,
    is_share: bool = False,
) -> Figure:
    return Figure(name, label, finite(value), finite(over_tokens), finite(over_conversations), is_share)


def _root(variance: float) -> float:
    """A standard error; rounding may take a variance of 0 below it."""
    return math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.nan


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _perplexity(means: Mapping[str, float], *covariances: _Covariances) -> tuple[Figure, ...]:
    q, base, ratio = "student_logprob", "teacher_logprob", RATIO
    ppl_q, ppl_base, factor = _exp(-means[q]), _exp(-means[base]), _exp(means[ratio])

    def errors(variance: Callable[[_Covariances], float]) -> list[float]:
        return [_root(variance(each)) for each in covariances]

    tokens = covariances[0]
    # ln PPL(Q) is the mean of -q and ln PPL(Q) - ln PPL(base) that of the ratio, which is base - q.
    covariance = tokens[q, q] + tokens[q, ratio]
    spread = _root(tokens[q, q]) * _root(tokens[base, base])
    gap = ppl_q - ppl_base
    return (
        _figure("mean_ppl_q", "Mean PPL(Q)", ppl_q, *errors(lambda c: ppl_q**2 * c[q, q])),
        _figure("mean_ppl_base", "Mean PPL(base)", ppl_base, *errors(lambda c: ppl_base**2 * c[base, base])),
        _figure(
            "cor_ln_ppl",
            "Cor(ln(PPL(Q)), ln(PPL(base)))",
            covariance / spread if spread else math.nan,
            is_share=True,
        ),
        _figure(
            "mean_ln_ppl_ratio",
            "Mean ln(PPL(Q)/PPL(base))",
            means[ratio],
            *errors(lambda c: c[ratio, ratio]),
        ),
        _figure(
            "mean_ppl_ratio",
            "Mean PPL(Q)/PPL(base)",
            factor,
            *errors(lambda c: factor**2 * c[ratio, ratio]),
        ),
        _figure(
            "mean_ppl_difference",
            "Mean PPL(Q)-PPL(base)",
            gap,
            *errors(
                lambda c: gap**2 * c[q, q] + ppl_base**2 * c[ratio, ratio] - 2 * gap * ppl_base * c[q, ratio]
            ),
        ),
    )


def _kld(
    means: Mapping[str, float],
    tokens: _Covariances,
    conversations: _Covariances,
    read: Callable[[str], Iterable[FloatArray]],
) -> tuple[Figure, ...]:
    errors = (_root(each[KLD, KLD]) for each in (tokens, conversations))
    return (
        _figure("mean_kld", "Mean KLD", means[KLD], *errors),
        *_percentiles("kld", "KLD", _KLD_SHARES, lambda: read(KLD)),
    )


def _delta(
    means: Mapping[str, float],
    tokens: _Covariances,
    conversations: _Covariances,
    read: Callable[[str], Iterable[FloatArray]],
) -> tuple[Figure, ...]:
    both = tokens, conversations
    rms = math.sqrt(means[_SQUARED_DELTA])
    rms_errors = (_root(each[_SQUARED_DELTA, _SQUARED_DELTA]) / (2 * rms) if rms else 0.0 for each in both)
    top_errors = (_root(each[SAME_TOP, SAME_TOP]) for each in both)
    # The measure is base less Q.
    return (
        _figure(
            "mean_delta_p",
            "Mean Δp",
            0.0 - means[DELTA],
            *(_root(each[DELTA, DELTA]) for each in both),
            is_share=True,
        ),
        *_percentiles(
            "delta_p", "Δp", _DELTA_SHARES, lambda: (0.0 - values for values in read(DELTA)), is_share=True
        ),
        _figure("rms_delta_p", "RMS Δp", rms, *rms_errors, is_share=True),
        _figure("same_top_p", "Same top p", means[SAME_TOP], *top_errors, is_share=True),
    )


def _percentiles(
    name: str,
    label: str,
    shares: Sequence[float],
    read: Callable[[], Iterable[FloatArray]],
    *,
    is_share: bool = False,
) -> list[Figure]:
    values = percentiles(read, shares) or [math.nan] * len(shares)
    figures = []
    for share, value in zip(shares, values, strict=True):
        shown, key = _NAMED_SHARES.get(share, (f"{100 * share:.1f}%", f"p{100 * share:g}".replace(".", "_")))
        figures.append(_figure(f"{key}_{name}", f"{shown} {label}", value, is_share=is_share))
    return figures
