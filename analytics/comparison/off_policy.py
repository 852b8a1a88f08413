"""How far one policy's tokens are from another's: importance ratios of realised tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.divergence.topk import FloatArray

# The clip range of PPO, Schulman et al. (2017).
CLIP_EPSILON = 0.2
# Numbers that have no value where a weight is beyond the range of float64.
OVERFLOWING = ("off_policy.mean_ratio", "off_policy.effective_sample_size", "off_policy.chi2")
_SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def ratio_columns(log_ratios: FloatArray) -> dict[str, FloatArray]:
    """The columns that `off_policy` needs the sums of, by name, each of shape [tokens]."""
    with np.errstate(over="ignore"):
        ratios = np.exp(log_ratios)
        squares = np.exp(2.0 * log_ratios)
    columns = {
        "log_ratio": log_ratios,
        "abs_log_ratio": np.abs(log_ratios),
        "ratio": ratios,
        "squared_ratio": squares,
        "n_outside_0.9_1.1": (ratios < 0.9) | (ratios > 1.1),
        "n_outside_0.5_2": (ratios < 0.5) | (ratios > 2.0),
        "n_clipped_low": ratios < 1.0 - CLIP_EPSILON,
        "n_clipped_high": ratios > 1.0 + CLIP_EPSILON,
    }
    return {name: column.astype(np.float64) for name, column in columns.items()}


class LogRatioPercentiles(NamedTuple):
    """Values that a share of the tokens does not exceed, within 0.1 %; None without tokens.

    Attributes:
        p01: 1 % of the tokens do not exceed it.
        p05: 5 %.
        p25: 25 %.
        p50: The median.
        p75: 75 %.
        p95: 95 %.
        p99: 99 %.
    """

    p01: float | None
    p05: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p95: float | None
    p99: float | None


class Spread(NamedTuple):
    """Of one number for each sequence; None without sequences.

    Attributes:
        mean: Mean.
        min: The smallest.
        max: The largest.
    """

    mean: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Importance ratios exp(log_ratio) of realised tokens, raw: not clipped and not normalised.

    Where the tokens were sampled by the policy in the denominator, they estimate expectations under it.

    Attributes:
        log_ratio: Percentiles of the log-ratio.
        mean_abs_log_ratio: Mean size of the log-ratio.
        mean_ratio: Mean weight; 1 in expectation if the policy in the denominator sampled the tokens.
        effective_sample_size: (sum w)^2 / (n sum w^2) of all tokens' weights, a share of n (Kong, 1992).
            None where a weight is too large for it.
        chi2: mean w^2 - 1, an estimate of the chi-square divergence of the two policies.
        outside_0_9_1_1: Share of tokens with a ratio outside [0.9, 1.1].
        outside_0_5_2: Outside [0.5, 2].
        clipped_low: Share of ratios below 0.8, which PPO would clip.
        clipped_high: Above 1.2.
        n_sequences: Conversations (or branches) with tokens of the group; None where groups are narrow.
        sequence_sum: Of the sum of log-ratios of each, a sequence's log weight.
        sequence_mean: Of its mean per token.
        sequence_effective_sample_size: Of the sequences' weights.
    """

    log_ratio: LogRatioPercentiles
    mean_abs_log_ratio: float | None
    mean_ratio: float | None
    effective_sample_size: float | None
    chi2: float | None
    outside_0_9_1_1: float | None
    outside_0_5_2: float | None
    clipped_low: float | None
    clipped_high: float | None
    n_sequences: int | None
    sequence_sum: Spread
    sequence_mean: Spread
    sequence_effective_sample_size: float | None

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {
            "log_ratio": self.log_ratio._asdict(),
            "sequence_sum": self.sequence_sum._asdict(),
            "sequence_mean": self.sequence_mean._asdict(),
        }


def off_policy(group: Group) -> OffPolicy:
    """The numbers of one group whose columns include `ratio_columns`, the log-ratio kept by conversation."""
    n_tokens, clusters, sums = group.n_tokens, group.clusters, group.sums

    def mean(name: str) -> float | None:
        return finite(sums[name] / n_tokens) if n_tokens else None

    sequence_sums = clusters.sums["log_ratio"]
    squared = mean("squared_ratio")
    return OffPolicy(
        log_ratio=LogRatioPercentiles(*(finite(group.sketch.quantile(share)) for share in _SHARES)),
        mean_abs_log_ratio=mean("abs_log_ratio"),
        mean_ratio=mean("ratio"),
        effective_sample_size=effective_sample_size(sums["ratio"], sums["squared_ratio"], n_tokens),
        chi2=None if squared is None else squared - 1.0,
        outside_0_9_1_1=mean("n_outside_0.9_1.1"),
        outside_0_5_2=mean("n_outside_0.5_2"),
        clipped_low=mean("n_clipped_low"),
        clipped_high=mean("n_clipped_high"),
        n_sequences=len(clusters.names) or None,
        sequence_sum=_spread(sequence_sums),
        sequence_mean=_spread(sequence_sums / np.maximum(clusters.n_tokens, 1)),
        sequence_effective_sample_size=_sequence_effective_sample_size(sequence_sums),
    )


def effective_sample_size(total: float, total_of_squares: float, n: int) -> float | None:
    """(sum w)^2 / (n sum w^2), the share of n weights that counts; None without, or where it overflows.

    Source:
        Kong (1992), A Note on Importance Sampling using Standardized Weights.
    """
    if not n or not math.isfinite(total_of_squares) or not total_of_squares:
        return None
    return total / total_of_squares * total / n


def finite(value: float | None) -> float | None:
    """The value, None where it is infinite: JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _sequence_effective_sample_size(log_weights: FloatArray) -> float | None:
    if not len(log_weights) or not math.isfinite(log_weights.max()):
        return None
    # A common factor of all weights does not count.
    weights = np.exp(log_weights - log_weights.max())
    return effective_sample_size(math.fsum(weights), math.fsum(weights**2), len(weights))


def _spread(values: FloatArray | Sequence[float]) -> Spread:
    if not len(values):
        return Spread(None, None, None)
    mean = math.fsum(values) / len(values) if np.isfinite(values).all() else None
    return Spread(mean, finite(float(min(values))), finite(float(max(values))))
