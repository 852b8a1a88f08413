"""Conditions on a comparison that make a command fail, such as `role=assistant: gjs_0.5.lower > 0.05`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tokscore.analytics.comparison.diff import DiffReport
from tokscore.analytics.comparison.diff_rows import DiffRow
from tokscore.analytics.exact.report import PREFIX, ExactReport
from tokscore.analytics.groups.grouping import Grouping, value_label
from tokscore.dataset.errors import UsageError, counted

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_LOGARITHMS = ("teacher_logprob", "student_logprob", "log_ratio")
_OVERFLOWING = ("off_policy.mean_ratio", "off_policy.effective_sample_size", "off_policy.chi2")
_FROM_LISTS = ("teacher_rank.", "student_rank.", "top1_agreement")
_FORM = re.compile(r"\s*(?:(?P<group>.+):)?\s*(?P<metric>[\w.+-]+)\s*(?P<sign>[<>]=?)\s*(?P<value>\S+)\s*")


class Gate(NamedTuple):
    """One condition.

    Attributes:
        text: As it was given.
        group: Values by column as tables print them; empty for all tokens.
        metric: Dotted name of a number of a row.
        sign: `>`, `>=`, `<` or `<=`.
        value: What the number is compared with.
    """

    text: str
    group: dict[str, str]
    metric: str
    sign: str
    value: float

    @property
    def is_exact(self) -> bool:
        """Whether it is about a value over the whole vocabulary."""
        return self.metric.startswith(PREFIX)


class Breach(NamedTuple):
    """A condition that fails the comparison.

    Attributes:
        gate: The condition.
        found: The number; inf for an upper limit that some token leaves unbounded. None where there is no
            number, so that nobody can say whether the condition holds.
        reason: Why there is none; empty if that is not known, or there is one.
    """

    gate: Gate
    found: float | None
    reason: str = ""

    def __str__(self) -> str:
        """The condition, and what was found."""
        if self.found is not None:
            return f"{self.gate.text} (it is {self.found:.6g})"
        return f"{self.gate.text} (it has no value{f': {self.reason}' if self.reason else ''})"


def parse_gate(text: str, by: Grouping) -> Gate:
    """The condition `[COLUMN=VALUE[,COLUMN=VALUE...]:] METRIC > NUMBER`.

    Raises:
        UsageError: It is none, or names other columns than the report is grouped by.
    """
    match = _FORM.fullmatch(text)
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or math.isnan(value):
        raise UsageError(
            f"{text!r} is no condition; expected [COLUMN=VALUE:] METRIC > NUMBER, "
            "such as 'role=assistant: gjs_0.5.lower > 0.05'."
        )
    group: dict[str, str] = {}
    # A comma in a value is none between columns.
    columns = "|".join(map(re.escape, by.names))
    for pair in re.split(rf",(?=\s*(?:{columns})\s*=)", match["group"] or ""):
        name, equals, wanted = (part.strip() for part in pair.partition("="))
        if equals:
            group[name] = wanted
        elif name and name != "all":
            raise UsageError(f"{text!r} has the group {name!r}; expected COLUMN=VALUE, or all.")
    if group and set(group) != set(by.names):
        raise UsageError(
            f"{text!r} names the columns {', '.join(group)}; expected {', '.join(by.names)}, which the "
            "report is grouped by. Add them to `by`."
        )
    return Gate(text, group, match["metric"], match["sign"], value)


def breaches(report: DiffReport, gates: Sequence[Gate], exact: ExactReport | None = None) -> list[Breach]:
    """The conditions that hold, and those about a number that is not there: a gate does not pass unseen.

    Args:
        report: The comparison.
        gates: Conditions on it.
        exact: The values over the whole vocabulary of the same groups, whose metrics are `exact.NAME`.

    Raises:
        UsageError: A group or a metric is not in the report.
    """
    found = []
    for gate in gates:
        row = _row(report, gate)
        numbers = dict.fromkeys(report.total.flat()) | row.flat()
        if exact is not None:
            of_group = exact.flat_total() if row is report.total else exact.flat_of(row.group)
            numbers |= dict.fromkeys(exact.total.flat()) | of_group
        if gate.metric not in numbers:
            names = ", ".join(name for name in numbers if not name.startswith("confidence."))
            raise UsageError(f"{gate.text!r}: there is no {gate.metric}; expected one of {names}.")
        number = numbers[gate.metric]
        if number is None and (_is_infinite(row, gate.metric) or numbers.get(f"{gate.metric}_n_infinite")):
            number = math.inf
        if number is None:
            found.append(Breach(gate, None, _why_missing(report, row, gate.metric)))
        elif _OPERATORS[gate.sign](number, gate.value):
            found.append(Breach(gate, float(number)))
    return found


def _is_infinite(row: DiffRow, metric: str) -> bool:
    """Whether it is an upper limit that some token lacks, or that of its confidence, or infinite itself."""
    name, _, end = metric.removeprefix("confidence.").rpartition(".")
    interval = row.intervals.get(name)
    if interval is None:
        return False
    return interval.is_unbounded if end == "upper" else end == "lower" and interval.is_infinite


def _why_missing(report: DiffReport, row: DiffRow, metric: str) -> str:
    """Why a number is not there; empty where that is not known."""
    if not row.n_tokens:
        return "the group has no tokens that both models scored"
    if metric.startswith(PREFIX):
        return "a model rules a token out, or conversations set none"
    if metric.startswith("confidence."):
        if not row.confidence:
            return report.why_unconfident or ""
        if row is report.total and metric.endswith(".adjusted_p_value"):
            return "all tokens together are one test, whose p_value needs no adjustment"
        return f"{counted(row.confidence[0].n_conversations, 'conversation')} set none"
    if metric in _LOGARITHMS:
        return "a model rules a token out, whose logprob is -inf"
    if metric in _OVERFLOWING:
        return "ratios of the two models' probabilities are beyond the range of float64"
    if metric.startswith("off_policy."):
        return report.why_unconfident or ""
    if metric.startswith(_FROM_LISTS):
        return "the datasets have no ranks or lists for it"
    return ""


def _row(report: DiffReport, gate: Gate) -> DiffRow:
    if not gate.group:
        return report.total
    for row in report.groups:
        values = zip(report.by.names, report.by.values(row.group), strict=True)
        if all(value_label(value, name) == gate.group[name] for name, value in values):
            return row
    known = "; ".join(
        ",".join(f"{name}={label}" for name, label in report.by.labels(row.group).items())
        for row in report.groups[:20]
    )
    raise UsageError(f"{gate.text!r}: there is no such group; expected one of {known}.")
