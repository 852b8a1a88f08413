"""Conditions on a comparison that make a command fail, such as `role=assistant: gjs_0.5.lower > 0.05`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from tokscore.analytics.exact.report import ExactReport
from tokscore.analytics.exact.rows import PREFIX, metric_names
from tokscore.analytics.groups.grouping import Grouping, GroupKey
from tokscore.dataset.errors import UsageError, expected_name

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SHOWN_GROUPS = 20
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


class GatedRow(Protocol):
    """The numbers of a group of tokens."""

    @property
    def group(self) -> GroupKey:
        """What its tokens share."""

    @property
    def n_tokens(self) -> int:
        """Tokens that its numbers are of."""

    def flat(self) -> dict[str, float | int | None]:
        """Numbers by dotted name; None where there is no value, or an infinite one."""

    def is_infinite(self, metric: str) -> bool:
        """Whether a number without a value is infinite."""


class GroupedRow(Protocol):
    """What belongs to a group of tokens."""

    @property
    def group(self) -> GroupKey:
        """What its tokens share."""


class GroupedReport(Protocol):
    """A report with groups."""

    @property
    def by(self) -> Grouping:
        """What the groups share."""

    @property
    def groups(self) -> Sequence[GroupedRow]:
        """A row for each."""


class GatedReport(Protocol):
    """A report that conditions can be about."""

    @property
    def by(self) -> Grouping:
        """What the groups share."""

    @property
    def groups(self) -> Sequence[GatedRow]:
        """A row for each."""

    @property
    def total(self) -> GatedRow:
        """All tokens together."""

    def why_missing(self, row: Any, metric: str) -> str:  # Any: a row of the report
        """Why a number is not there; empty where that is not known."""


def check_gates(gates: Sequence[Gate], names: Collection[str]) -> None:
    """Refuse conditions about numbers that a report will not have.

    Args:
        gates: The conditions.
        names: Dotted names of all numbers of a row.

    Raises:
        UsageError: With the name that was meant, where one is close.
    """
    for gate in gates:
        if gate.metric not in names:
            shown = [name for name in names if not name.startswith("confidence.")]
            known = names if gate.metric.startswith("confidence.") else shown
            raise UsageError(f"{gate.text!r}: there is no {gate.metric}; {expected_name(gate.metric, known)}")


def check_groups(report: GroupedReport, gates: Sequence[Gate]) -> None:
    """Refuse conditions about groups that a report does not have.

    Raises:
        UsageError: With the group that was meant, where one is close.
    """
    known = [report.by.labels(row.group) for row in report.groups]
    by_values = {",".join(labels.values()): _text(labels) for labels in known}
    for gate in gates:
        if gate.group and gate.group not in known:
            values = ",".join(gate.group[name] for name in report.by.names)
            close = [by_values[name] for name in get_close_matches(values, by_values)]
            listed = f"xpected one of {'; '.join(map(_text, known[:_SHOWN_GROUPS]))}."
            meant = f"did you mean {' or '.join(close)}? E{listed}" if close else f"e{listed}"
            raise UsageError(f"{gate.text!r}: there is no such group; {meant}")


def breaches(report: GatedReport, gates: Sequence[Gate], exact: ExactReport | None = None) -> list[Breach]:
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
            numbers |= dict.fromkeys(metric_names(exact.parts.alphas)) | of_group
        check_gates([gate], numbers)
        number = numbers[gate.metric]
        if number is None and (row.is_infinite(gate.metric) or numbers.get(f"{gate.metric}_n_infinite")):
            number = math.inf
        if number is None:
            found.append(Breach(gate, None, _why_missing(report, row, gate.metric)))
        elif _OPERATORS[gate.sign](number, gate.value):
            found.append(Breach(gate, float(number)))
    return found


def _why_missing(report: GatedReport, row: GatedRow, metric: str) -> str:
    """Why a number is not there; empty where that is not known."""
    if row.n_tokens and metric.startswith(PREFIX):
        return "a model rules a token out, or conversations set none"
    return report.why_missing(row, metric)


def _row(report: GatedReport, gate: Gate) -> GatedRow:
    if not gate.group:
        return report.total
    check_groups(report, [gate])
    return next(row for row in report.groups if report.by.labels(row.group) == gate.group)


def _text(labels: Mapping[str, str]) -> str:
    """A group as conditions name it."""
    return ",".join(f"{name}={label}" for name, label in labels.items())
