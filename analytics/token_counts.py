"""Counts and sums over the tokens of each group, as whole numbers that add up alike in every order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.groups import Grouping, GroupKey
from tokscore.analytics.row_groups import Codes, GroupedRows, map_row_groups
from tokscore.analytics.sketches import QuantileSketch
from tokscore.rendering.dataset import Dataset
from tokscore.rendering.tables import DatasetKind

# Sums are taken in whole numbers of 2**-48 nats, in two halves. Each half of a row group's sum is a float64
# that holds it exactly: multiples of 2**-20 up to 2**33, and of 2**-48 up to 2**5.
_UNIT_BITS, _COARSE_BITS = 48, 20
# Adding and taking away this number rounds to a multiple of 2**-bits.
_ROUND_COARSE, _ROUND_FINE = 1.5 * 2.0 ** (52 - _COARSE_BITS), 1.5 * 2.0 ** (52 - _UNIT_BITS)
# Above this, a sketch for each group would take too much memory.
MAX_SKETCHES = 10_000

_TOKEN_COLUMNS = ("is_content", "is_sampled")
_SCORE_COLUMNS = ("logprob", "rank", "entropy")
_COUNTS = ("n_tokens", "n_content", "n_sampled", "n_sampled_unknown")
_SCORE_COUNTS = (
    "n_scored",
    "n_impossible",
    "n_nan",
    "n_ranked",
    "n_rank1",
    "n_entropy",
    "logprob_units",
    "entropy_units",
)


class TokenCounts:
    """What is known of one group.

    Attributes:
        numbers: Whole numbers by name.
        logprobs: Sketch of the logprobs; None for a token dataset, or with too many groups.
    """

    __slots__ = ("logprobs", "numbers")

    def __init__(self, names: tuple[str, ...], *, with_sketch: bool) -> None:
        self.numbers = dict.fromkeys(names, 0)
        self.logprobs = QuantileSketch() if with_sketch else None

    def add(self, other: TokenCounts) -> None:
        """Count what `other` has counted."""
        for name, n in other.numbers.items():
            self.numbers[name] += n
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs.merge(other.logprobs)

    def total(self, name: str) -> float:
        """Sum of `logprob` or `entropy` over the tokens that have a finite one, in nats."""
        return self.numbers[f"{name}_units"] / 2.0**_UNIT_BITS


def count_tokens(dataset: Dataset, by: Grouping) -> tuple[dict[GroupKey, TokenCounts], TokenCounts]:
    """The counts of every group, and of all tokens."""
    is_scored = dataset.manifest.kind is DatasetKind.SCORES
    columns = [*_TOKEN_COLUMNS, *(_SCORE_COLUMNS if is_scored else ())]
    groups: dict[GroupKey, TokenCounts] = {}
    total = new_counts(dataset.manifest.kind)
    with_sketches = is_scored
    for counted in map_row_groups(dataset, by, columns, _count):
        for key, counts in counted.items():
            total.add(counts)
            if key in groups:
                groups[key].add(counts)
            else:
                groups[key] = counts
        if with_sketches and len(groups) > MAX_SKETCHES:
            with_sketches = False
        if not with_sketches:
            for counts in groups.values():
                counts.logprobs = None
    return groups, total


def new_counts(kind: DatasetKind) -> TokenCounts:
    """The counts of no tokens."""
    is_scored = kind is DatasetKind.SCORES
    return TokenCounts((*_COUNTS, *_SCORE_COUNTS) if is_scored else _COUNTS, with_sketch=is_scored)


def _count(rows: GroupedRows) -> Mapping[GroupKey, TokenCounts]:
    is_scored = "logprob" in rows.columns.column_names
    counted = partial(_counted, rows)
    is_sampled = rows.columns["is_sampled"]
    columns = {
        "n_tokens": counted(None),
        "n_content": counted(_flags(rows.columns["is_content"])),
        "n_sampled": counted(_flags(pc.fill_null(is_sampled, False))),
        "n_sampled_unknown": counted(_flags(pc.is_null(is_sampled))),
    }
    sketches: list[QuantileSketch | None] = [None] * len(rows.keys)
    if is_scored:
        scored, sketches = _score_counts(rows)
        columns |= scored
    result = {}
    for code, (key, sketch) in enumerate(zip(rows.keys, sketches, strict=True)):
        if columns["n_tokens"][code]:
            counts = TokenCounts((), with_sketch=False)
            counts.numbers = {name: column[code] for name, column in columns.items()}
            counts.logprobs = sketch
            result[key] = counts
    return result


def _score_counts(rows: GroupedRows) -> tuple[dict[str, list[int]], list[QuantileSketch | None]]:
    codes, n_groups = rows.codes, len(rows.keys)
    counted = partial(_counted, rows)
    ranks = rows.columns["rank"]
    is_first = _flags(pc.fill_null(pc.equal(ranks, 1), False))
    columns = {"n_ranked": counted(_flags(pc.is_valid(ranks))), "n_rank1": counted(is_first)}
    n_nan = np.zeros(n_groups, np.int64)
    for name in ("logprob", "entropy"):
        column = rows.columns[name]
        is_valid = _flags(pc.is_valid(column))
        values = column.combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
        is_nan = np.isnan(values) & is_valid
        if is_nan.any():
            n_nan += np.bincount(codes[is_nan], minlength=n_groups)
        is_finite = np.isfinite(values)
        columns["n_scored" if name == "logprob" else "n_entropy"] = counted(is_valid)
        columns[f"{name}_units"] = _units(codes, np.where(is_finite, values, 0.0), n_groups)
        if name == "logprob":
            columns["n_impossible"] = counted(np.isinf(values))
            sketches = _sketches(codes, values, is_valid & ~is_nan, n_groups)
    return columns | {"n_nan": n_nan.tolist()}, sketches


def _counted(rows: GroupedRows, mask: NDArray[np.bool_] | None) -> list[int]:
    """Rows of each group, those of the mask."""
    codes = rows.codes if mask is None else rows.codes[mask]
    counts: list[int] = np.bincount(codes, minlength=len(rows.keys)).tolist()
    return counts


def _units(codes: Codes, values: NDArray[np.float64], n_groups: int) -> list[int]:
    """Sums in units of 2**-48."""
    coarse = (values + _ROUND_COARSE) - _ROUND_COARSE
    fine = ((values - coarse) + _ROUND_FINE) - _ROUND_FINE
    halves = (np.bincount(codes, weights=half, minlength=n_groups).tolist() for half in (coarse, fine))
    return [
        (int(high * 2**_COARSE_BITS) << (_UNIT_BITS - _COARSE_BITS)) + int(low * 2**_UNIT_BITS)
        for high, low in zip(*halves, strict=True)
    ]


def _sketches(
    codes: Codes, values: NDArray[np.float64], wanted: NDArray[np.bool_], n_groups: int
) -> list[QuantileSketch | None]:
    codes, values = codes[wanted], values[wanted]
    if n_groups > 1:
        # numpy sorts short integers by radix.
        order = np.argsort(codes.astype(np.uint16) if n_groups <= 2**16 else codes, kind="stable")
        values = values[order]
    edges = np.cumsum([0, *np.bincount(codes, minlength=n_groups).tolist()])
    sketches: list[QuantileSketch | None] = []
    for start, stop in itertools.pairwise(edges):
        sketch = QuantileSketch()
        sketch.add(values[start:stop])
        sketches.append(sketch)
    return sketches


def _flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    flags: NDArray[Any] = column.combine_chunks().to_numpy(zero_copy_only=False)
    return flags.astype(np.bool_, copy=False)
