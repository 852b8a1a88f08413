"""The numbers by which tokens are coloured, and how far each stands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.report.conversation.scored import ScoredConversation
from tokscore.dataset.choices import Metric
from tokscore.dataset.errors import UsageError

# A token's level is the number of these shares of all tokens that it stands out more than.
LEVEL_SHARES = (0.5, 0.8, 0.95, 0.99)


def delta(teacher: FloatArray, student: FloatArray) -> FloatArray:
    """Teacher's less student's logprob; NaN where both rule the token out."""
    with np.errstate(invalid="ignore"):
        gap: FloatArray = teacher - student
    return gap


class MetricRow(NamedTuple):
    """How a metric is computed, and which of its values stand out.

    Attributes:
        legend: The values that stand out, in words.
        values: Of every token of a conversation that has what the metric takes.
        salience: Larger for what people look for.
        takes_two: Whether it compares two models.
        takes_recorded: Whether it compares with the logprobs that the input carried.
        takes_exact: Whether it takes values over the whole vocabulary.
        is_signed: Whether values above and below 0 both stand out, and look different.
    """

    legend: str
    values: Callable[[ScoredConversation], FloatArray]
    salience: Callable[[FloatArray], FloatArray]
    takes_two: bool = False
    takes_recorded: bool = False
    takes_exact: bool = False
    is_signed: bool = False


def _gjs_lower(conversation: ScoredConversation) -> FloatArray:
    assert conversation.gjs is not None
    return conversation.gjs.lower


def _kl(conversation: ScoredConversation) -> FloatArray:
    assert conversation.exact is not None
    return conversation.exact["kl_teacher_student"]


def _delta(conversation: ScoredConversation) -> FloatArray:
    assert conversation.student is not None
    return delta(conversation.teacher.logprobs, conversation.student.logprobs)


def recorded_gap(conversation: ScoredConversation) -> FloatArray:
    """Scored less recorded logprob of every token, NaN where one of them is missing, or all are."""
    if conversation.recorded is None:
        return np.full(len(conversation), np.nan)
    return delta(conversation.teacher.logprobs, conversation.recorded)


METRICS: Mapping[Metric, MetricRow] = {
    Metric.LOGPROB: MetricRow("low logprob", lambda found: found.teacher.logprobs, np.negative),
    Metric.RANK: MetricRow("high rank", lambda found: found.teacher.ranks, np.positive),
    Metric.ENTROPY: MetricRow("high entropy", lambda found: found.teacher.entropies, np.positive),
    Metric.GJS: MetricRow("GJS, lower limit in nats", _gjs_lower, np.positive, takes_two=True),
    Metric.KL: MetricRow(
        "KL(T||S) over the whole vocabulary, in nats", _kl, np.positive, takes_two=True, takes_exact=True
    ),
    Metric.DELTA: MetricRow(
        "logprob T - S; raised digits: T is higher, lowered: S is",
        _delta,
        np.abs,
        takes_two=True,
        is_signed=True,
    ),
    Metric.RECORDED: MetricRow(
        "logprob scored - recorded; raised digits: scored is higher, lowered: recorded is",
        recorded_gap,
        np.abs,
        takes_recorded=True,
        is_signed=True,
    ),
}


def parse_metric(name: str | None, *, has_student: bool, has_exact: bool = False) -> Metric:
    """The metric called `name`; without one, KL where it is known, GJS for two models and logprob for one.

    Raises:
        UsageError: There is none, or it takes two models or their exact values.
    """
    if name is None:
        return (Metric.KL if has_exact else Metric.GJS) if has_student else Metric.LOGPROB
    try:
        metric = Metric(name)
    except ValueError:
        raise UsageError(f"the metric is {name!r}; expected {', '.join(Metric)}.") from None
    if METRICS[metric].takes_two and not has_student:
        raise UsageError(
            f"{metric} compares two models; name the other's score dataset with `against`, or choose "
            f"{', '.join(other for other, row in METRICS.items() if not row.takes_two)}."
        )
    if METRICS[metric].takes_exact and not has_exact:
        raise UsageError(
            f"{metric} is a value over the whole vocabulary; name the exact.parquet that diff --exact -o "
            "writes with `exact`, or choose gjs."
        )
    return metric


def metric_values(conversation: ScoredConversation, metric: Metric) -> FloatArray:
    """The metric of every token, float64, shape [tokens], NaN where unknown.

    logprob, rank and entropy are the teacher's. gjs is the lower limit, in nats. delta is the teacher's less
    the student's logprob, recorded the teacher's less the recorded one. kl is that over the whole
    vocabulary.

    Raises:
        UsageError: The metric takes two models and there is one, or exact values that are not known.
    """
    row = METRICS[metric]
    if row.takes_two and (conversation.student is None or conversation.gjs is None):
        raise UsageError(f"{metric} compares two models; there is one.")
    if row.takes_exact and conversation.exact is None:
        raise UsageError(f"{metric} is a value over the whole vocabulary, which is not known here.")
    return row.values(conversation)


def salience(metric: Metric, values: FloatArray) -> FloatArray:
    """How far each value stands out, larger for what people look for."""
    return METRICS[metric].salience(values)


def level_limits(saliences: FloatArray) -> FloatArray:
    """The saliences at `LEVEL_SHARES`; infinite where no token has a value."""
    known = saliences[~np.isnan(saliences)]
    if not len(known):
        return np.full(len(LEVEL_SHARES), np.inf)
    limits: FloatArray = np.quantile(known, LEVEL_SHARES, method="inverted_cdf")
    return limits


def levels(saliences: FloatArray, limits: FloatArray) -> NDArray[np.int8]:
    """Number of limits that each salience exceeds; -1 where it is unknown."""
    found = np.searchsorted(limits, saliences, side="left")
    return np.where(np.isnan(saliences), -1, found).astype(np.int8)
