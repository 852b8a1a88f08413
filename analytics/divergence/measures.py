"""All measures of two models at one token, a row each.

A row drives the columns of `diff -o`, the rows, tables, JSON, CSV and HTML page of `diff`, its gates,
`--exact` and the reference of columns. To add a measure, add a row to `MEASURES`; one that named columns do
not give has a compiled function of its own, in a module of its own, which takes the lists of both models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import MAX_LOGPROB, FloatArray, Lists

# Either the value of every token, or its lower and its upper limit.
Values = FloatArray | tuple[FloatArray, FloatArray]
Compute = Callable[["TokenMeasures", float], Values]

# Limits allow for the rounding of float64 and may exceed the range of their measure by it.
_TOLERANCE = 1e-9


class Mass(StrEnum):
    """The distribution that a measure takes its mean over."""

    TEACHER = "teacher"
    STUDENT = "student"
    MIXTURE = "mixture"
    EITHER = "either"


class DiffTable(StrEnum):
    """The table of `diff` that a measure stands in."""

    MAIN = "main"
    FURTHER = "further"
    REALISED = "realised"


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: its name, meaning and range, and how it is computed.

    Attributes:
        name: Of its column; an interval has the columns NAME.lower and NAME.upper. With an alpha, that is
            added: `gjs_0.5`.
        heading: Of its column in tables; the alpha is added.
        meaning: A phrase without a full stop.
        unit: "nats" or "probability".
        compute: Its values from the columns of the rows above, and from the lists of both models; None where
            the kernel gives its columns.
        largest: The most that it can be, in general or of an alpha.
        least: The least.
        is_interval: Whether the lists leave it open between two limits.
        takes_alpha: Whether it mixes both models with a weight of the teacher.
        is_gap: Whether it says how far the models are apart: then means have confidence limits, and it is 0
            of a model against itself.
        mean_over: The distribution that an interval takes its mean over.
        is_exact: Whether `diff --exact` has it: as a field of this name of `ExactTokens` in scoring/exact,
            or from `compute`, if that gives the value where both limits of its columns are values.
        table: Where `diff` prints it; None for nowhere.
        alpha: Weight of the teacher; NaN where there is none yet.
    """

    name: str
    heading: str
    meaning: str
    unit: str
    compute: Compute | None = None
    largest: float | Callable[[float], float] = math.inf
    least: float = 0.0
    is_interval: bool = True
    takes_alpha: bool = False
    is_gap: bool = True
    mean_over: Mass = Mass.EITHER
    is_exact: bool = False
    table: DiffTable | None = DiffTable.FURTHER
    alpha: float = math.nan

    def at(self, alpha: float) -> Measure:
        """The measure with this weight of the teacher."""
        return replace(
            self,
            name=alpha_name(self.name, alpha),
            heading=f"{self.heading} {alpha:g}",
            largest=self.largest(alpha) if callable(self.largest) else self.largest,
            alpha=alpha,
        )

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest value."""
        return self.least, math.nan if callable(self.largest) else self.largest

    @property
    def may_be_unbounded(self) -> bool:
        """Whether a token can lack an upper limit."""
        return self.is_interval and self.range[1] == math.inf

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns."""
        return (f"{self.name}.lower", f"{self.name}.upper") if self.is_interval else (self.name,)


class Bounds(NamedTuple):
    """Per-token limits of a measure, each float64 of shape [tokens].

    Attributes:
        lower: At most the value over the whole vocabulary.
        upper: At least that value; inf where the lists do not limit it.
        unresolved: Probability of the ids whose value is not known on both sides, under the distribution
            that the measure takes its mean over: the teacher for `kl_teacher_student` and the skew KL, the
            student for `kl_student_teacher`, the mixture alpha * teacher + (1 - alpha) * student for the
            GJS, the larger of both for the total variation; for an entropy that of the ids which are not in
            both lists.
    """

    lower: FloatArray
    upper: FloatArray
    unresolved: FloatArray


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    """All measures of some tokens, as columns by name, each float64 of shape [tokens].

    Attributes:
        alphas: Weights of the teacher that the mixtures were taken with.
        columns: Those of `Measure.columns`.
        teacher: The lists of the teacher; None where whole distributions were compared.
        student: The lists of the student, likewise.
        token_ids: The tokens that are there; None where they are not known.
    """

    alphas: tuple[float, ...]
    columns: dict[str, FloatArray]
    teacher: Lists | None = None
    student: Lists | None = None
    token_ids: NDArray[np.int32] | None = None

    def __getitem__(self, column: str) -> FloatArray:
        """One column, such as `kl_teacher_student.lower`."""
        return self.columns[column]

    def of(self, name: str, alpha: float | None = None) -> Bounds:
        """The limits of one measure: `of("total_variation")`, `of("gjs", 0.5)`."""
        measure = measure_named(name if alpha is None else alpha_name(name, alpha), self.alphas)
        mine, theirs = self["unresolved_teacher"], self["unresolved_student"]
        unresolved = {
            Mass.TEACHER: mine,
            Mass.STUDENT: theirs,
            Mass.MIXTURE: measure.alpha * mine + (1 - measure.alpha) * theirs,
            Mass.EITHER: np.maximum(mine, theirs),
        }[measure.mean_over]
        lower, upper = (self[column] for column in measure.columns)
        return Bounds(lower, upper, unresolved)


def _log_ratio(tokens: TokenMeasures, _: float) -> Values:
    ratios: FloatArray = tokens["teacher_logprob"] - tokens["student_logprob"]
    return ratios


def _delta_p(tokens: TokenMeasures, _: float) -> Values:
    delta: FloatArray = np.exp(tokens["teacher_logprob"]) - np.exp(tokens["student_logprob"])
    return delta


def _point(name: str, heading: str, meaning: str, unit: str, **row: Any) -> Measure:  # Any: other fields
    return Measure(name, heading, meaning, unit, is_interval=False, **row)


_MAIN, _REALISED, _OF_TEACHER, _OF_STUDENT = DiffTable.MAIN, DiffTable.REALISED, Mass.TEACHER, Mass.STUDENT
# Logprobs may exceed 0 a little, and so may probabilities and their difference 1.
_MAX_P = math.exp(MAX_LOGPROB)

# In the order of JSON and of `diff -o`.
# fmt: off
MEASURES = [
    _point("teacher_logprob", "logprob T", "Teacher's logprob of the token", "nats",
           least=-math.inf, largest=MAX_LOGPROB, is_gap=False, is_exact=True, table=_MAIN),
    _point("student_logprob", "logprob S", "Student's", "nats",
           least=-math.inf, largest=MAX_LOGPROB, is_gap=False, is_exact=True, table=_MAIN),
    _point("log_ratio", "logprob T-S", "Teacher's less student's logprob", "nats",
           compute=_log_ratio, least=-math.inf, is_exact=True, table=_REALISED),
    _point("delta_p", "p T-S", "Teacher's less student's probability", "probability",
           compute=_delta_p, least=-_MAX_P, largest=_MAX_P, is_exact=True, table=_REALISED),
    _point("unresolved_teacher", "unresolved T", "Teacher mass on ids not known on both sides", "probability",
           largest=1.0, is_gap=False, table=None),
    _point("unresolved_student", "unresolved S", "Student mass on them", "probability",
           largest=1.0, is_gap=False, table=None),
    Measure("kl_teacher_student", "KL(T||S)", "KL(teacher || student)", "nats",
            mean_over=_OF_TEACHER, is_exact=True, table=_MAIN),
    Measure("kl_student_teacher", "KL(S||T)", "KL(student || teacher)", "nats",
            mean_over=_OF_STUDENT, is_exact=True, table=_MAIN),
    _point("kl_tail_as_one_teacher_student", "KL(T||S) tail as one",
           "KL(teacher || student) with all ids not known on both sides as one: at most the whole KL", "nats",
           table=None),
    _point("kl_tail_as_one_student_teacher", "KL(S||T) tail as one",
           "KL(student || teacher) likewise", "nats", table=None),
    Measure("total_variation", "TV", "Total variation distance", "probability", largest=1.0, is_exact=True),
    Measure("entropy_teacher", "entropy T", "Entropy of the teacher's distribution", "nats",
            mean_over=_OF_TEACHER, is_gap=False, is_exact=True),
    Measure("entropy_student", "entropy S", "Entropy of the student's distribution", "nats",
            mean_over=_OF_STUDENT, is_gap=False, is_exact=True),
    # At most the entropy of alpha (Lin, 1991), where the models share no id.
    Measure("gjs", "GJS", "Generalised Jensen-Shannon divergence with this weight of the teacher", "nats",
            takes_alpha=True, mean_over=Mass.MIXTURE, is_exact=True, table=_MAIN,
            largest=lambda alpha: -alpha * math.log(alpha) - (1 - alpha) * math.log1p(-alpha)),
    # The mixture is at least alpha times the teacher.
    Measure("skew_kl", "skew KL", "KL(teacher || mixture with this weight of the teacher)", "nats",
            takes_alpha=True, mean_over=_OF_TEACHER, is_exact=True, largest=lambda alpha: -math.log(alpha)),
]
# fmt: on


def alpha_name(name: str, alpha: float) -> str:
    """Name of a measure with this weight of the teacher, such as `gjs_0.5`."""
    return f"{name}_{alpha:g}"


def measures(alphas: Sequence[float]) -> list[Measure]:
    """All measures: those without an alpha, then those of each alpha."""
    plain = [row for row in MEASURES if not row.takes_alpha]
    return [*plain, *(row.at(alpha) for alpha in alphas for row in MEASURES if row.takes_alpha)]


def points(alphas: Sequence[float]) -> list[Measure]:
    """Measures whose value is known."""
    return [row for row in measures(alphas) if not row.is_interval]


def intervals(alphas: Sequence[float]) -> list[Measure]:
    """Measures that are known between two limits."""
    return [row for row in measures(alphas) if row.is_interval]


def gaps(alphas: Sequence[float]) -> list[Measure]:
    """Measures of how far the models are apart."""
    return [row for row in measures(alphas) if row.is_gap]


def measure_named(name: str, alphas: Sequence[float]) -> Measure:
    """The measure of this name; a `KeyError` if there is none."""
    return {row.name: row for row in measures(alphas)}[name]


def ranges_of(columns: Sequence[str], alphas: Sequence[float]) -> FloatArray:
    """Least and largest value of columns, shape [2, columns], with what rounding may add."""
    found = {column: _with_rounding(row) for row in measures(alphas) for column in row.columns}
    return np.array([found[column] for column in columns]).reshape(-1, 2).T


def _with_rounding(measure: Measure) -> tuple[float, float]:
    least, largest = measure.range
    return least - _TOLERANCE, largest + _TOLERANCE * (1.0 + abs(largest))


def compute(tokens: TokenMeasures) -> dict[int, str]:
    """Add the columns of every measure that the kernel does not give.

    Args:
        tokens: With the columns of the kernel and, where they are known, the logprobs of the tokens that are
            there; without these, measures of them are left out.

    Returns:
        Tokens with a value out of the range of its measure, and the reason.
    """
    wrong: dict[int, str] = {}
    has_realised = "teacher_logprob" in tokens.columns
    for measure in measures(tokens.alphas):
        if measure.compute is None or not (measure.is_interval or has_realised):
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # of tokens with a fault
            values = measure.compute(tokens, measure.alpha)
        lower, upper = values if isinstance(values, tuple) else (values, values)
        tokens.columns.update(zip(measure.columns, (lower, upper), strict=False))
        for token in outside(measure, lower, upper):
            wrong.setdefault(token, range_reason(measure, lower[token], upper[token]))
    return wrong


def range_reason(measure: Measure, lower: float, upper: float) -> str:
    """Reason of a fault: a value that cannot be."""
    least, largest = measure.range
    found = f"{lower:g}" if lower == upper else f"[{lower:g}, {upper:g}]"
    return (
        f"{measure.name} is {found}; expected {least:g} to {largest:g}. The list of a model contradicts "
        "itself: no id outside it is more likely than the least likely in it."
    )


def outside(measure: Measure, lower: FloatArray, upper: FloatArray) -> list[int]:
    """Tokens with limits out of the range of the measure, or in the wrong order; NaN is both."""
    least, largest = _with_rounding(measure)
    inside = (lower >= least) & (upper <= largest) & (lower <= upper + _TOLERANCE)
    return np.flatnonzero(~inside).tolist()
