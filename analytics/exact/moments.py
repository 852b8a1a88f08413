"""Means over the tokens of a group, and how they vary together: over tokens, and over conversations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tokscore.analytics.comparison.confidence import by_conversation
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.divergence.topk import FloatArray

Q, BASE, RATIO = "student_logprob", "teacher_logprob", "log_ratio"
KLD, DELTA, SQUARED_DELTA, SAME_TOP = "kl_teacher_student", "delta_p", "squared_delta_p", "same_top"
MEANS = (Q, BASE, RATIO, KLD, DELTA, SQUARED_DELTA, SAME_TOP)
# Pairs whose covariance is needed.
PAIRS = (*((name, name) for name in MEANS), (Q, RATIO))

# By pairs of names.
Covariances = Mapping[tuple[str, str], float]


class Moments(NamedTuple):
    """Means per token and covariances of these means; NaN where infinite or not known.

    Attributes:
        n_tokens: They are of.
        n_conversations: With such tokens.
        means: By the names in `MEANS`.
        over_tokens: As if tokens were independent.
        over_conversations: Where only conversations are.
    """

    n_tokens: int
    n_conversations: int
    means: Mapping[str, float]
    over_tokens: Covariances
    over_conversations: Covariances

    @property
    def covariances(self) -> tuple[Covariances, Covariances]:
        """Over tokens, and over conversations."""
        return self.over_tokens, self.over_conversations


def moment_columns(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The columns whose sums `moments_of` needs, beside those of exact measures.

    Args:
        values: Of exact measures and `same_top`, shape [tokens].
    """
    columns = {SAME_TOP: values[SAME_TOP].astype(np.float64), SQUARED_DELTA: values[DELTA] ** 2}
    known = {**values, **columns}
    with np.errstate(invalid="ignore", over="ignore"):
        products = {_product(*pair): known[pair[0]] * known[pair[1]] for pair in PAIRS}
    return columns | {name: np.nan_to_num(column, nan=np.inf) for name, column in products.items()}


def _product(one: str, other: str) -> str:
    return f"{one} * {other}"


def moments_of(group: Group) -> Moments:
    """The moments of a group, from its sums and those by conversation.

    Source:
        Cochran (1977), Sampling Techniques, chapter 9, for means of clusters of different sizes.
    """
    n = group.n_tokens
    names = (*MEANS, *(_product(*pair) for pair in PAIRS))
    # A sum that is infinite has no sign.
    known = {name: group.sums[name] if math.isfinite(group.sums[name]) else math.nan for name in names}
    means = {name: total / n if n else math.nan for name, total in known.items()}
    over_tokens = over_conversations = dict.fromkeys(PAIRS, math.nan)
    if n > 1:
        over_tokens = {
            (one, other): (means[_product(one, other)] - means[one] * means[other]) / (n - 1)
            for one, other in PAIRS
        }
    sums, n_tokens = by_conversation(group.clusters)
    n_observed = int(np.count_nonzero(n_tokens))
    if n_observed > 1:
        with np.errstate(invalid="ignore"):
            rest = {name: sums[name] - means[name] * n_tokens for name in MEANS}
            factor = n_observed / (n_observed - 1) / n**2
            over_conversations = {
                (one, other): factor * float(rest[one] @ rest[other]) for one, other in PAIRS
            }
    n_conversations = len({conversation for conversation, _ in group.clusters.names})
    return Moments(n, n_conversations, means, over_tokens, over_conversations)
