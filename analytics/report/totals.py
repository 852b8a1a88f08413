"""Sums over the tokens of a report, by everything it groups them by, in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.analytics.comparison.reduction import Group, Reduced, Reduction, reduce_batch
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.groups.grouping import Grouping, group_order
from tokscore.analytics.report.grouping import PageGrouping, group_column, page_label
from tokscore.analytics.statistics.sketches import QuantileSketch
from tokscore.dataset.token_rows import Place

# Log-ratios and logprobs are counted in bins of this width, the outer ones open.
BIN_NATS = 0.25
N_BINS = 80
_SAMPLED_TOKENS = 100_000


class BatchTotals(NamedTuple):
    """Sums of a batch of whole conversations by grouping, its histogram, and sketches of columns."""

    reduced: dict[PageGrouping, Reduced]
    histogram: NDArray[np.int64]
    sketches: Mapping[str, QuantileSketch]


def batch_totals(
    values: Mapping[str, FloatArray],
    rows: NDArray[np.int64],
    places: Sequence[Place],
    starts: NDArray[np.int64],
    table: pa.Table,
    *,
    sketched: Mapping[str, FloatArray] | None = None,
) -> BatchTotals:
    """Add up the values of a batch, as `reduction.reduce_batch` takes them.

    Args:
        values: Columns by name, with `log_ratio` of two models, or `logprob` of one.
        rows: Row of every token.
        places: The conversations.
        starts: First row of each, and the number of all rows.
        table: Token rows with `GROUPED_COLUMNS`.
        sketched: Columns that percentiles are wanted of, not NaN.
    """
    reduced = {
        by: reduce_batch(
            values,
            rows,
            places,
            starts,
            pa.table({by.value: group_column(table, by)}),
            Grouping((by.value,)),
            sketched=None,
        )
        for by in PageGrouping
    }
    first = first_bin(has_student="log_ratio" in values)
    shown = values["log_ratio" if "log_ratio" in values else "logprob"]
    bins = np.clip(np.floor((shown - first) / BIN_NATS), 0, N_BINS - 1)
    sketches = {name: QuantileSketch() for name in sketched or {}}
    for name, column in (sketched or {}).items():
        sketches[name].add(column)
    return BatchTotals(reduced, np.bincount(bins.astype(np.int64), minlength=N_BINS), sketches)


def first_bin(*, has_student: bool) -> float:
    """Where the bins begin: log-ratios are of either sign, logprobs of one."""
    return -N_BINS * BIN_NATS / (2 if has_student else 1)


class Totals:
    """Sums of every group of every grouping, and of all tokens.

    Attributes:
        histogram: Tokens by log-ratio (two models) or logprob (one), int64, shape [N_BINS].
        sketches: Of the columns that percentiles are wanted of.
    """

    def __init__(self, kept: Sequence[str] = ()) -> None:
        """Start with no tokens; `kept` as of `Reduction`."""
        self.histogram = np.zeros(N_BINS, np.int64)
        self.sketches: dict[str, QuantileSketch] = {}
        self._reductions = {by: Reduction(kept, Grouping((by.value,))) for by in PageGrouping}

    def add(self, batch: BatchTotals) -> None:
        """Add a batch."""
        for by, reduced in batch.reduced.items():
            self._reductions[by].add(reduced)
        self.histogram += batch.histogram
        for name, sketch in batch.sketches.items():
            self.sketches.setdefault(name, QuantileSketch()).merge(sketch)

    @property
    def n_conversations(self) -> int:
        """Conversations (or branches) added so far."""
        return self._reductions[PageGrouping.ROLE].n_conversations

    def total(self) -> Group:
        """Sums over all tokens."""
        return self._reductions[PageGrouping.ROLE].total()

    def groups(self, by: PageGrouping) -> list[tuple[str, Group]]:
        """Label and sums of each group, by number or alphabet."""
        reduction = self._reductions[by]
        return [
            (page_label(key, by), reduction.group(key)) for key in sorted(reduction.keys(), key=group_order)
        ]


class TokenSample:
    """Values of at most 100,000 tokens drawn evenly from a stream, the same in every run."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys, self._values = np.zeros(0), np.zeros(0)

    def add(self, values: FloatArray) -> None:
        """Offer values; NaN is left out."""
        known = values[~np.isnan(values)]
        self._keys = np.concatenate([self._keys, self._random.random(len(known))])
        self._values = np.concatenate([self._values, known])
        if len(self._keys) > 2 * _SAMPLED_TOKENS:
            self._shrink()

    def values(self) -> FloatArray:
        """The drawn values."""
        if len(self._keys) > _SAMPLED_TOKENS:
            self._shrink()
        return self._values

    def _shrink(self) -> None:
        kept = np.argpartition(self._keys, _SAMPLED_TOKENS)[:_SAMPLED_TOKENS]
        self._keys, self._values = self._keys[kept], self._values[kept]
