"""The numbers by which tokens are coloured, and how far each stands out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.report.scored import ScoredConversation
from tokscore.dataset.choices import Metric
from tokscore.dataset.errors import UsageError

# A token's level is the number of these shares of all tokens that it stands out more than.
LEVEL_SHARES = (0.5, 0.8, 0.95, 0.99)


# Those that take two models.
COMPARING = frozenset({Metric.GJS, Metric.DELTA})


def parse_metric(name: str | None, *, has_student: bool) -> Metric:
    """The metric called `name`; without one, GJS for two models and logprob for one.

    Raises:
        UsageError: There is none, or it takes two models.
    """
    if name is None:
        return Metric.GJS if has_student else Metric.LOGPROB
    try:
        metric = Metric(name)
    except ValueError:
        raise UsageError(f"the metric is {name!r}; expected {', '.join(Metric)}.") from None
    if metric in COMPARING and not has_student:
        raise UsageError(
            f"{metric} compares two models; name the other's score dataset with `against`, or choose "
            f"{', '.join(other for other in Metric if other not in COMPARING)}."
        )
    return metric


def metric_values(conversation: ScoredConversation, metric: Metric) -> FloatArray:
    """The metric of every token, float64, shape [tokens], NaN where unknown.

    logprob, rank and entropy are the teacher's. gjs is the lower limit, in nats. delta is the teacher's less
    the student's logprob.

    Raises:
        UsageError: The metric takes two models and there is one.
    """
    teacher, student, gjs = conversation.teacher, conversation.student, conversation.gjs
    if metric is Metric.LOGPROB:
        return teacher.logprobs
    if metric is Metric.RANK:
        return teacher.ranks
    if metric is Metric.ENTROPY:
        return teacher.entropies
    if student is None or gjs is None:
        raise UsageError(f"{metric} compares two models; there is one.")
    return gjs.lower if metric is Metric.GJS else delta(teacher.logprobs, student.logprobs)


def delta(teacher: FloatArray, student: FloatArray) -> FloatArray:
    """Teacher's less student's logprob; NaN where both rule the token out."""
    with np.errstate(invalid="ignore"):
        gap: FloatArray = teacher - student
    return gap


def salience(metric: Metric, values: FloatArray) -> FloatArray:
    """How far each value stands out, larger for what people look for."""
    if metric is Metric.LOGPROB:
        return -values
    return np.abs(values) if metric is Metric.DELTA else values


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
