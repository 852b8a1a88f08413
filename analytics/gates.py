"""Conditions on a comparison that make a command fail, such as `role=assistant: gjs_0.5.lower > 0.05`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tokscore.analytics.diff import DiffReport
from tokscore.analytics.diff_rows import DiffRow
from tokscore.analytics.groups import Grouping, value_label
from tokscore.rendering.errors import UsageError

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM = re.compile(r"\s*(?:(?P<group>[^:]+):)?\s*(?P<metric>[\w.]+)\s*(?P<sign>[<>]=?)\s*(?P<value>\S+)\s*")


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


class Breach(NamedTuple):
    """A condition that holds.

    Attributes:
        gate: The condition.
        found: The number; inf for an upper limit that is not there.
    """

    gate: Gate
    found: float


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
    for pair in (match["group"] or "").split(","):
        name, equals, wanted = (part.strip() for part in pair.partition("="))
        if equals:
            group[name] = wanted
        elif name and name != "all":
            raise UsageError(f"{text!r} has the group {name!r}; expected COLUMN=VALUE, or all.")
    if group and set(group) != set(by.names):
        raise UsageError(
            f"{text!r} names the columns {', '.join(group)}; expected {', '.join(by.names)}, which the "
            "report is grouped by. Add them to --by."
        )
    return Gate(text, group, match["metric"], match["sign"], value)


def breaches(report: DiffReport, gates: list[Gate]) -> list[Breach]:
    """The conditions that hold; one about a mean that is not there does not.

    Raises:
        UsageError: A group or a metric is not in the report.
    """
    found = []
    for gate in gates:
        row = _row(report, gate)
        numbers = row.flat()
        if gate.metric not in numbers:
            names = ", ".join(name for name in numbers if not name.startswith("confidence."))
            raise UsageError(f"{gate.text!r}: there is no {gate.metric}; expected one of {names}.")
        number = numbers[gate.metric]
        name, _, end = gate.metric.rpartition(".")
        if (
            number is None
            and end == "upper"
            and name in row.intervals()
            and row.intervals()[name].is_unbounded
        ):
            number = math.inf
        if number is not None and _OPERATORS[gate.sign](number, gate.value):
            found.append(Breach(gate, float(number)))
    return found


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
