"""The columns of the table of exact values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tokscore.analytics.divergence.measures import Measure, TokenMeasures, alpha_name, measures, outside
from tokscore.dataset.errors import EngineError
from tokscore.dataset.schema import COLUMNS, Column, DatasetKind

if TYPE_CHECKING:
    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.scoring.exact.divergences import ExactTokens

# Columns of the teacher's dataset that say whose token it is.
ATTRIBUTION = ("position", "token_id", "message_index", "role", "source", "is_content", "is_sampled")
SAME_TOP = Column("same_top", pa.bool_(), "Whether both models find the same id most likely.")


def exact_measures(alphas: Sequence[float]) -> list[Measure]:
    """Measures that have a value over the whole vocabulary."""
    return [measure for measure in measures(alphas) if measure.is_exact]


def exact_columns(alphas: Sequence[float]) -> list[Column]:
    """One row per token that both models gave a logprob: whose it is, and the values."""
    tokens = {column.name: column for column in COLUMNS[DatasetKind.TOKENS]}
    columns = [tokens[name] for name in ("conversation_id", "branch", *ATTRIBUTION)]
    for measure in exact_measures(alphas):
        infinite = "; inf where the second model rules out a token" if measure.may_be_unbounded else ""
        columns.append(Column(measure.name, pa.float64(), f"{measure.meaning}{infinite}.", measure.unit))
    return [*columns, SAME_TOP]


def exact_schema(alphas: Sequence[float]) -> pa.Schema:
    """The schema of `exact_columns`, with descriptions and units."""
    return pa.schema([column.field for column in exact_columns(alphas)])


def exact_values(found: Sequence[ExactTokens], alphas: Sequence[float]) -> dict[str, FloatArray]:
    """Every column of values by name, of some sequences one after the other.

    Raises:
        EngineError: One is out of its range.
    """
    if not found:
        names = (measure.name for measure in exact_measures(alphas))
        return {**dict.fromkeys(names, np.zeros(0)), SAME_TOP.name: np.zeros(0, np.bool_)}
    joined = {name: np.concatenate([getattr(each, name) for each in found], -1) for name in found[0]._fields}
    values = {SAME_TOP.name: joined.pop(SAME_TOP.name)}
    given: dict[str, FloatArray] = dict(joined)
    for name in ("gjs", "skew_kl"):
        given |= {alpha_name(name, alpha): row for alpha, row in zip(alphas, joined[name], strict=True)}
    tokens = TokenMeasures(tuple(alphas), {})
    for measure in exact_measures(alphas):
        if measure.compute is None:
            column = given[measure.name]
        else:
            computed = measure.compute(tokens, measure.alpha)
            column = computed[0] if isinstance(computed, tuple) else computed
        values[measure.name] = column
        tokens.columns.update(dict.fromkeys(measure.columns, column))
        wrong = out_of_range(measure, column)
        if wrong is not None:
            raise EngineError(
                f"{measure.name} is {wrong.found} over the whole vocabulary; expected {wrong.expected}. "
                "Look at the weights, or try another dtype."
            )
    return values


class OutOfRange(NamedTuple):
    """The first value that a measure cannot have.

    Attributes:
        row: Of it.
        found: The value, as messages print it.
        expected: What it can be.
    """

    row: int
    found: str
    expected: str


def out_of_range(measure: Measure, values: FloatArray) -> OutOfRange | None:
    """The first value outside the range of its measure; None if all are within."""
    wrong = outside(measure, values, values)
    if not wrong:
        return None
    least, largest = measure.range
    return OutOfRange(wrong[0], f"{values[wrong[0]]:g}", f"{least:g} to {largest:g}")
