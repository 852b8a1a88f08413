"""Values of tokens added up by group, conversation after conversation, in flat memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.analytics.comparison.content_alignment import AlignedRows
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.groups.codes import encode_column
from tokscore.analytics.groups.grouping import METADATA_PREFIX, Grouping, GroupKey, GroupValue, place_metadata
from tokscore.analytics.groups.positions import answer_positions, encode_bins, message_positions
from tokscore.analytics.statistics.sketches import QuantileSketch
from tokscore.analytics.statistics.totals import ExactTotals
from tokscore.dataset.choices import GroupBy
from tokscore.dataset.token_rows import Place

IndexArray = NDArray[np.int64]


class Cells(NamedTuple):
    """Sums over the tokens of one conversation and one group each, shape [cells] or [cells, columns].

    Attributes:
        sums: Of every column.
        n_tokens: Tokens.
        groups: Index of the group.
        conversations: Index of the conversation.
    """

    sums: FloatArray
    n_tokens: IndexArray
    groups: IndexArray
    conversations: IndexArray


class Reduced(NamedTuple):
    """Sums over a batch of whole conversations.

    Attributes:
        columns: Names of what is summed.
        conversations: Their ids and branches.
        keys: Keys of the groups in the batch.
        n_rows: Rows of each group that could have values.
        n_unaligned: Rows of each group without a partner.
        groups: Sums by conversation and group.
        totals: Sums by conversation.
        sketches: Of one column in each group; empty where groups are narrow.
        total_sketch: Of all tokens.
    """

    columns: tuple[str, ...]
    conversations: list[tuple[str, int]]
    keys: list[GroupKey]
    n_rows: IndexArray
    n_unaligned: IndexArray
    groups: Cells
    totals: Cells
    sketches: list[QuantileSketch]
    total_sketch: QuantileSketch


def reduce_batch(
    values: Mapping[str, FloatArray],
    rows: IndexArray,
    places: Sequence[Place],
    starts: IndexArray,
    attribution: pa.Table,
    by: Grouping,
    alignment: AlignedRows | None = None,
    *,
    sketched: str | None = "log_ratio",
) -> Reduced:
    """Add up the values of a batch of whole conversations.

    Args:
        values: Columns by name, each of shape [tokens], not NaN.
        rows: Row of every token.
        places: The conversations.
        starts: First row of each, and the number of all rows.
        attribution: The token columns of `by` for all rows.
        by: The columns that make the groups.
        alignment: The rows that could have values, and those without a partner; None where all could.
        sketched: The column that percentiles are wanted of.
    """
    codes, keys = _codes(attribution, places, starts, by)
    conversations = np.searchsorted(starts, rows, side="right") - 1
    of_rows = codes[rows]
    shown = np.zeros(0) if sketched is None else values[sketched]
    matrix = np.vstack([*values.values()])
    return Reduced(
        tuple(values),
        [place.key for place in places],
        keys,
        np.bincount(codes if alignment is None else codes[alignment.teacher], minlength=len(keys)),
        np.bincount(codes[[] if alignment is None else alignment.teacher_alone], minlength=len(keys)),
        _cells(matrix, conversations, of_rows, len(keys)),
        _cells(matrix, conversations, np.zeros_like(of_rows), 1),
        []
        if by.is_narrow or sketched is None
        else [_sketch(shown[of_rows == code]) for code in range(len(keys))],
        _sketch(shown),
    )


def _sketch(values: FloatArray) -> QuantileSketch:
    sketch = QuantileSketch()
    sketch.add(values)
    return sketch


def _cells(values: FloatArray, conversations: IndexArray, groups: IndexArray, n_groups: int) -> Cells:
    from tokscore.analytics.statistics.cells import add_to_cells

    pairs = conversations * n_groups + groups
    found, cells, n_tokens = np.unique(pairs, return_inverse=True, return_counts=True)
    sums = np.zeros((len(found), len(values)))
    add_to_cells(values, cells.astype(np.int64), sums)
    return Cells(sums, n_tokens.astype(np.int64), found % n_groups, found // n_groups)


def _codes(
    attribution: pa.Table, places: Sequence[Place], starts: IndexArray, by: Grouping
) -> tuple[IndexArray, list[GroupKey]]:
    """A group for each row, and the keys of the groups."""
    n_rows = int(starts[-1])
    codes = np.zeros(n_rows, np.int64)
    values: list[tuple[GroupValue, ...]] = [()]
    for name in by.names:
        if name == GroupBy.CONVERSATION_ID or name.startswith(METADATA_PREFIX):
            mine, found = _conversation_codes(places, starts, name)
        elif name == GroupBy.ANSWER_POSITION:
            mine, found = encode_bins(answer_positions(attribution["is_sampled"], starts[:-1]))
        elif name == GroupBy.POSITION_IN_MESSAGE:
            mine, found = encode_bins(message_positions(attribution))
        else:
            mine, found = encode_column(attribution[name])
        joined, codes = np.unique(codes * len(found) + mine, return_inverse=True)
        values = [(*values[code // len(found)], found[code % len(found)]) for code in joined.tolist()]
    return codes.astype(np.int64), [by.key(each) for each in values] if n_rows else []


def _conversation_codes(
    places: Sequence[Place], starts: IndexArray, name: str
) -> tuple[IndexArray, list[GroupValue]]:
    index: dict[GroupValue, int] = {}
    codes = []
    for place in places:
        value = place.conversation_id if name == GroupBy.CONVERSATION_ID else place_metadata(place, name)
        codes.append(index.setdefault(value, len(index)))
    return np.repeat(np.array(codes, np.int64), np.diff(starts)), list(index)


class Reduction:
    """All groups of a report.

    Attributes:
        n_conversations: Added so far.
    """

    def __init__(self, kept: Sequence[str], by: Grouping) -> None:
        """Start with no groups.

        Args:
            kept: Columns whose sums are kept for every conversation, for statistics over conversations.
            by: The columns that make the groups.
        """
        self._by = by
        self._kept = list(kept)
        self._columns: tuple[str, ...] = ()
        self._totals, self._total = ExactTotals(0), ExactTotals(0)
        self._indices: dict[GroupKey, int] = {}
        self._n_rows: list[int] = []
        self._n_tokens: list[int] = []
        self._n_unaligned: list[int] = []
        self._sketches: dict[int, QuantileSketch] = {}
        self._total_sketch = QuantileSketch()
        self._names: list[tuple[str, int]] = []
        self._clusters: list[Cells] = []
        self._total_clusters: list[Cells] = []

    @property
    def n_conversations(self) -> int:
        """Conversations (or branches) added so far."""
        return len(self._names)

    def add(self, part: Reduced) -> None:
        """Add a batch, with the same columns as the others."""
        if not self._columns:
            self._columns = part.columns
            self._totals, self._total = (ExactTotals(len(part.columns)) for _ in range(2))
        kept_columns = [part.columns.index(name) for name in self._kept]
        groups = np.array([self._index(key) for key in part.keys], np.int64)
        for group, n_rows, n_alone in zip(
            groups, part.n_rows.tolist(), part.n_unaligned.tolist(), strict=True
        ):
            self._n_rows[group] += n_rows
            self._n_unaligned[group] += n_alone
        cells = part.groups._replace(groups=groups[part.groups.groups] if len(groups) else part.groups.groups)
        self._totals.add(cells.sums, cells.groups)
        self._total.add(part.totals.sums, part.totals.groups)
        n_more = np.bincount(cells.groups, cells.n_tokens, minlength=len(self._n_tokens))
        self._n_tokens = (np.array(self._n_tokens) + n_more.astype(np.int64)).tolist()
        for group, sketch in zip(groups.tolist(), part.sketches, strict=False):
            self._sketches.setdefault(group, QuantileSketch()).merge(sketch)
        self._total_sketch.merge(part.total_sketch)
        for kept, sums in ((self._clusters, cells), (self._total_clusters, part.totals)):
            if kept is self._clusters and self._by.is_narrow:
                continue
            kept.append(
                sums._replace(
                    sums=sums.sums[:, kept_columns], conversations=sums.conversations + len(self._names)
                )
            )
        self._names += part.conversations

    def _index(self, key: GroupKey) -> int:
        index = self._indices.setdefault(key, len(self._indices))
        if index == len(self._n_rows):
            self._n_rows.append(0)
            self._n_tokens.append(0)
            self._n_unaligned.append(0)
        return index

    def ensure(self, key: GroupKey) -> None:
        """Have a group, with or without tokens."""
        self._index(key)

    def keys(self) -> list[GroupKey]:
        """Keys of all groups, in no order."""
        return list(self._indices)

    def group(self, key: GroupKey) -> Group:
        """Sums of one group."""
        index = self._indices[key]
        return Group(
            self._n_rows[index],
            self._n_tokens[index],
            self._n_unaligned[index],
            dict(zip(self._columns, self._totals.value(index), strict=True)),
            self._sketches.get(index, QuantileSketch()),
            self._sorted(self._clusters, index),
        )

    def total(self) -> Group:
        """Sums of all groups together; they do not depend on the grouping."""
        return Group(
            sum(self._n_rows),
            sum(self._n_tokens),
            sum(self._n_unaligned),
            dict(zip(self._columns, self._total.value(0), strict=True)),
            self._total_sketch,
            self._sorted(self._total_clusters, 0),
        )

    def _sorted(self, parts: Sequence[Cells], group: int) -> Clusters:
        """One group's sums by conversation, in the order of conversation ids and branches."""
        rows = [np.flatnonzero(cells.groups == group) for cells in parts]
        picked = [(cells, row) for cells, row in zip(parts, rows, strict=True) if len(row)]
        if not picked:
            return Clusters([], dict.fromkeys(self._kept, np.zeros(0)), np.zeros(0, np.int64))
        sums = np.concatenate([cells.sums[row] for cells, row in picked])
        n_tokens = np.concatenate([cells.n_tokens[row] for cells, row in picked])
        names = [self._names[i] for cells, row in picked for i in cells.conversations[row].tolist()]
        order = sorted(range(len(names)), key=names.__getitem__)
        columns = dict(zip(self._kept, sums[order].T, strict=True))
        return Clusters([names[i] for i in order], columns, n_tokens[order])


class Clusters(NamedTuple):
    """Sums of one group by conversation (or branch), in the order of their ids.

    Attributes:
        names: Conversation id and branch.
        sums: Of each kept column, shape [conversations].
        n_tokens: Shape [conversations].
    """

    names: list[tuple[str, int]]
    sums: Mapping[str, FloatArray]
    n_tokens: IndexArray


class Group(NamedTuple):
    """Everything added up for one group.

    Attributes:
        n_rows: Rows that could have values.
        n_tokens: Tokens with values.
        n_unaligned: Rows without a partner.
        sums: Of every column.
        sketch: Percentiles of the column that was asked for; empty where groups are narrow.
        clusters: By conversation; empty where groups are narrow.
    """

    n_rows: int
    n_tokens: int
    n_unaligned: int
    sums: Mapping[str, float]
    sketch: QuantileSketch
    clusters: Clusters


class _Zeros(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 0.0


class _NoSums(dict[str, FloatArray]):
    def __missing__(self, name: str) -> FloatArray:
        return np.zeros(0)


# The group without tokens, whatever the columns are.
NO_TOKENS = Group(0, 0, 0, _Zeros(), QuantileSketch(), Clusters([], _NoSums(), np.zeros(0, np.int64)))
