"""Counts and sums over the tokens of each group, as whole numbers that add up alike in every order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.divergence.topk import MAX_LOGPROB
from tokscore.analytics.groups.codes import Codes
from tokscore.analytics.groups.counting import (
    COARSE,
    COUNTS,
    FINE,
    SCORE_COUNTS,
    count_bins_into,
    count_scores_into,
    count_tokens_into,
)
from tokscore.analytics.groups.grouping import Grouping, GroupKey
from tokscore.analytics.groups.row_groups import GroupedRows, map_row_groups
from tokscore.analytics.statistics.sketches import FIRST_FLOAT32_BIN, QuantileSketch, float32_bins
from tokscore.dataset.errors import InputError, agreeing
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import conversation_name

# Above this, a sketch for each group would take too much memory.
MAX_SKETCHES = 10_000

# Up to here, values are put in dense bins; above, they are sorted by group.
_MAX_DENSE = 16

_TOKEN_COLUMNS = ("is_content", "is_sampled")
_SCORE_COLUMNS = ("logprob", "rank", "entropy")


class TokenCounts:
    """Counts of one group.

    Attributes:
        numbers: Whole numbers by name.
        logprobs: Sketch of the logprobs; None for a token dataset, or with too many groups.
    """

    __slots__ = ("logprobs", "numbers")

    def __init__(self, names: tuple[str, ...], *, with_sketch: bool) -> None:
        self.numbers = dict.fromkeys(names, 0)
        self.logprobs = QuantileSketch() if with_sketch else None

    def add_numbers(self, other: TokenCounts) -> None:
        """Count what `other` has counted, without its sketch."""
        for name, n in other.numbers.items():
            self.numbers[name] += n

    def add(self, other: TokenCounts) -> None:
        """Count what `other` has counted; the sketch is lost where one of them has none."""
        self.add_numbers(other)
        if self.logprobs is None or other.logprobs is None:
            self.logprobs = None
        else:
            self.logprobs.merge(other.logprobs)

    def total(self, name: str) -> float:
        """Sum of `logprob` or `entropy` over the tokens that have a finite one, in nats."""
        coarse, fine = self.numbers[f"{name}_coarse"], self.numbers[f"{name}_fine"]
        return (coarse * int(FINE) + fine) / (int(COARSE) * int(FINE))

    @property
    def n_scored(self) -> int:
        """Tokens with a logprob."""
        return self.numbers["n_tokens"] - self.numbers["n_without_logprob"]

    @property
    def n_entropy(self) -> int:
        """Tokens with an entropy."""
        return self.numbers["n_tokens"] - self.numbers["n_without_entropy"]


def count_tokens(dataset: Dataset, by: Grouping) -> tuple[dict[GroupKey, TokenCounts], TokenCounts]:
    """The counts of every group, and of all tokens.

    Raises:
        InputError: A logprob or entropy is NaN, or a logprob above 0.
    """
    is_scored = dataset.manifest.kind is DatasetKind.SCORES
    columns = [*_TOKEN_COLUMNS, *(_SCORE_COLUMNS if is_scored else ())]
    groups: dict[GroupKey, TokenCounts] = {}
    total = new_counts(dataset.manifest.kind)
    n_bad = 0
    for counted in map_row_groups(dataset, by, columns, _count):
        n_bad += counted.n_bad
        if total.logprobs is not None and counted.logprobs is not None:
            total.logprobs.merge(counted.logprobs)
        for key, counts in counted.groups.items():
            if key in groups:
                groups[key].add(counts)
            else:
                groups[key] = counts
        if len(groups) > MAX_SKETCHES:
            for counts in groups.values():
                counts.logprobs = None
    for counts in groups.values():
        total.add_numbers(counts)
    if n_bad:
        are = agreeing(n_bad, "is 1 such value", f"are {n_bad:,} such values")
        raise InputError(
            f"{dataset.root}: {_first_bad_score(dataset)}; expected numbers, logprobs of at most 0. "
            f"There {are}: score it again."
        )
    return groups, total


def _first_bad_score(dataset: Dataset) -> str:
    """The first logprob or entropy that is NaN, or logprob above 0, with its place; there must be one."""
    columns = ["conversation_id", "branch", "position", "logprob", "entropy"]
    for batch in dataset.batches(dataset.manifest.kind.value, columns):
        above = pc.greater(batch["logprob"], MAX_LOGPROB)
        for name, flags in (
            ("logprob", pc.or_(pc.is_nan(batch["logprob"]), above)),
            ("entropy", pc.is_nan(batch["entropy"])),
        ):
            row = pc.index(flags, True).as_py()
            if row >= 0:
                found = {key: batch[key][row].as_py() for key in batch.schema.names}
                place = conversation_name(found["conversation_id"], found["branch"])
                return f"{place}, position {found['position']}: the {name} is {found[name]:g}"
    raise AssertionError("every score is a number of at most 0")


def new_counts(kind: DatasetKind) -> TokenCounts:
    """The counts of no tokens."""
    is_scored = kind is DatasetKind.SCORES
    return TokenCounts((*COUNTS, *SCORE_COUNTS) if is_scored else COUNTS, with_sketch=is_scored)


class _Counted(NamedTuple):
    """Counts over some rows.

    Attributes:
        groups: Counts of each group.
        logprobs: Sketch of all logprobs; None for a token dataset.
        n_bad: NaN that stand for no null, and logprobs above 0.
    """

    groups: Mapping[GroupKey, TokenCounts]
    logprobs: QuantileSketch | None
    n_bad: int


def _count(rows: GroupedRows) -> _Counted:
    table, codes, n_groups = rows.columns, rows.codes, len(rows.keys)
    is_content, is_sampled = table["is_content"].cast(pa.uint8()), table["is_sampled"].cast(pa.int8())
    counts = np.zeros((n_groups, len(COUNTS)), np.int64)
    count_tokens_into(codes, is_content.to_numpy(), pc.fill_null(is_sampled, -1).to_numpy(), counts)
    names: tuple[str, ...] = COUNTS
    whole: QuantileSketch | None = None
    sketches: Sequence[QuantileSketch | None] = [None] * n_groups
    n_bad = 0
    if "logprob" in table.column_names:
        logprobs, entropies = table["logprob"].to_numpy(), table["entropy"].to_numpy()
        scored = np.zeros((n_groups, len(SCORE_COUNTS)), np.int64)
        count_scores_into(codes, logprobs, pc.fill_null(table["rank"], 0).to_numpy(), entropies, scored)
        n_nulls = table["logprob"].null_count + table["entropy"].null_count
        n_bad = int(scored[:, _at("n_without_logprob", "n_without_entropy", "n_above_0")].sum()) - n_nulls
        whole, *sketches = _sketches(codes, logprobs, n_groups)
        names, counts = (*COUNTS, *SCORE_COUNTS), np.concatenate([counts, scored], axis=1)
    found = {}
    for key, numbers, sketch in zip(rows.keys, counts.tolist(), sketches, strict=True):
        group = TokenCounts((), with_sketch=False)
        group.numbers = dict(zip(names, numbers, strict=True))
        group.logprobs = sketch
        if group.numbers["n_tokens"]:
            found[key] = group
    return _Counted(found, whole, n_bad)


def _at(*names: str) -> list[int]:
    """Columns of `SCORE_COUNTS`."""
    return [SCORE_COUNTS.index(name) for name in names]


def _sketches(codes: Codes, values: NDArray[np.float32], n_groups: int) -> Iterator[QuantileSketch]:
    """Of all values, then of each group."""
    if 0 < n_groups <= _MAX_DENSE:
        # NaN are nulls; without values the bins are those of nothing.
        first, last = float32_bins(
            float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0))
        )
        bins = np.zeros((n_groups, last - first + 1), np.int64)
        limits = np.tile([np.inf, -np.inf], (n_groups, 1))
        count_bins_into(codes, values, values.view(np.int32), FIRST_FLOAT32_BIN, first, bins, limits)
        total = bins.sum(axis=0), limits[:, 0].min(), limits[:, 1].max()
        for counts, minimum, maximum in (total, *zip(bins, *limits.T, strict=True)):
            sketch = QuantileSketch()
            sketch.add_float32_bins(counts, first, float(minimum), float(maximum))
            yield sketch
        return
    wanted = ~np.isnan(values)
    codes, values = codes[wanted], values[wanted]
    whole = QuantileSketch()
    whole.add(values)
    yield whole
    # numpy sorts short integers by radix.
    order = np.argsort(codes.astype(np.uint16) if n_groups <= 2**16 else codes, kind="stable")
    values = values[order]
    for start, stop in pairwise(np.cumsum([0, *np.bincount(codes, minlength=n_groups).tolist()])):
        sketch = QuantileSketch()
        sketch.add(values[start:stop])
        yield sketch
