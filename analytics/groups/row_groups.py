"""Token rows of a dataset, read a few row groups at a time, with the group that each row belongs to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.groups.codes import Codes, Encoded, encode_column
from tokscore.analytics.groups.grouping import Grouping, GroupKey, GroupValue, place_metadata
from tokscore.analytics.groups.positions import answer_positions, encode_bins, message_positions
from tokscore.dataset.choices import GroupBy
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.table_files import WRITE_AGAIN
from tokscore.dataset.token_rows import ENCODED, conversation_name, row_faults

T = TypeVar("T")

_THREADS = 2
# Rows to read at once: the cost of a call, and of merging what it found, no longer shows.
_BATCH_ROWS = 400_000
# Above this, codes that occur are found by sorting.
_MAX_TABLE = 2**16


class GroupedRows(NamedTuple):
    """Rows of neighbouring row groups.

    Attributes:
        codes: int64 [rows], indices into `keys`.
        keys: Of the groups that occur.
        columns: The asked-for columns.
    """

    codes: Codes
    keys: list[GroupKey]
    columns: pa.Table


def map_row_groups(
    dataset: Dataset, by: Grouping, columns: Sequence[str], function: Callable[[GroupedRows], T]
) -> Iterator[T]:
    """A function applied to the rows, some row groups at a time: its results, in order.

    Args:
        dataset: Of tokens or scores.
        by: The groups.
        columns: Token columns that `function` needs.
        function: Called in several threads.
    """
    running: deque[Future[T]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for job in _jobs(dataset, by, columns):
            running.append(pool.submit(_run, function, job))
            if len(running) > _THREADS:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _run(function: Callable[[GroupedRows], T], job: Callable[[], GroupedRows]) -> T:
    return function(job())


class _Owners(NamedTuple):
    """Facts about rows that whole conversations tell; arrays have shape [rows].

    Attributes:
        known: For each `metadata.X`, its values, and the groups of `answer_position`.
        positions: That the rows must have.
        n_messages: Of the conversation.
    """

    known: dict[str, Encoded]
    positions: Codes
    n_messages: Codes

    def rows(self, start: int, stop: int) -> _Owners:
        """Of the rows from `start` to `stop` of these."""
        known = {
            name: Encoded(encoded.codes[start:stop], encoded.values) for name, encoded in self.known.items()
        }
        return _Owners(known, self.positions[start:stop], self.n_messages[start:stop])


def _jobs(dataset: Dataset, by: Grouping, columns: Sequence[str]) -> Iterator[Callable[[], GroupedRows]]:
    in_order = ["position"] if by.metadata_names else []
    wanted = list(dict.fromkeys([*columns, *by.token_columns, *in_order]))
    kind = dataset.manifest.kind.value
    for part in dataset.manifest.parts:
        owners = None
        if by.metadata_names or "message_index" in wanted or GroupBy.ANSWER_POSITION in by.names:
            owners = _owners(dataset, part.index, by)
        n_rows = dataset.n_rows(kind, part.index)
        metadata: pq.FileMetaData | None = None
        batches: Iterable[tuple[list[int] | None, int, int]] = [(None, 0, n_rows)]
        if n_rows > _BATCH_ROWS:
            with dataset.open_part(kind, part.index) as file:
                metadata, batches = file.metadata, list(_batches(file.group_starts))
        for groups, start, stop in batches:
            mine = None if owners is None else owners.rows(start, stop)
            yield partial(_read, dataset, part.index, metadata, groups, by, wanted, mine)


def _batches(group_starts: Sequence[int]) -> Iterator[tuple[list[int], int, int]]:
    """Row groups to read together, and their rows [start, stop) in the file."""
    groups: list[int] = []
    start = 0
    for group, stop in enumerate(group_starts[1:]):
        groups.append(group)
        if stop - start >= _BATCH_ROWS or stop == group_starts[-1]:
            yield groups, start, stop
            groups, start = [], stop


def _owners(dataset: Dataset, part: int, by: Grouping) -> _Owners:
    codes: dict[str, dict[GroupValue, int]] = {name: {} for name in by.metadata_names}
    of_conversations: dict[str, list[int]] = {name: [] for name in by.metadata_names}
    lengths, n_messages = [], []
    for place in dataset.places(part):
        lengths.append(place.n_tokens)
        n_messages.append(place.n_messages)
        for name, known in codes.items():
            value = place_metadata(place, name)
            of_conversations[name].append(known.setdefault(value, len(known)))
    n_rows = np.array(lengths, np.int64)
    encoded = {
        name: Encoded(np.repeat(np.array(of_conversations[name], np.int64), n_rows), list(known))
        for name, known in codes.items()
    }
    if GroupBy.ANSWER_POSITION in by.names:
        # An answer may go on in the next batch of row groups.
        with dataset.open_part(dataset.manifest.kind.value, part) as file:
            sampled = file.read(["is_sampled"])["is_sampled"]
        starts = np.cumsum(n_rows) - n_rows
        encoded[GroupBy.ANSWER_POSITION] = encode_bins(answer_positions(sampled, starts))
    positions = np.arange(n_rows.sum()) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
    return _Owners(encoded, positions, np.repeat(np.array(n_messages, np.int64), n_rows))


def _read(
    dataset: Dataset,
    part: int,
    metadata: pq.FileMetaData | None,
    groups: list[int] | None,
    by: Grouping,
    columns: Sequence[str],
    owners: _Owners | None,
) -> GroupedRows:
    kind = dataset.manifest.kind.value
    encoded = [name for name in ENCODED if name in by.names]
    with dataset.open_part(kind, part, encoded=encoded, metadata=metadata) as file:
        table = file.read(columns, groups, use_threads=False)
    known: dict[str, Encoded] = {}
    if owners is not None:
        known = dict(owners.known)
        for row, reason in row_faults(table, owners.positions, owners.n_messages):
            first = file.group_starts[groups[0]] if groups else 0
            place = next(
                each for each in dataset.places(part) if first + row < each.first_row + each.n_tokens
            )
            raise InputError(f"{file.path}: {conversation_name(*place.key)}: {reason} {WRITE_AGAIN}")
    if GroupBy.POSITION_IN_MESSAGE in by.names:
        known[GroupBy.POSITION_IN_MESSAGE] = encode_bins(message_positions(table))
    codes, keys = _combine(
        [known[name] if name in known else encode_column(table[name]) for name in by.names], by
    )
    return GroupedRows(codes, keys, table)


def _combine(columns: Sequence[Encoded], by: Grouping) -> tuple[Codes, list[GroupKey]]:
    """One code for the codes of several columns together, and the keys of those that occur."""
    codes = columns[0].codes
    if len(columns) == 1:
        return codes, [by.key([value]) for value in columns[0].values]
    sizes = [len(column.values) for column in columns]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        codes = codes * size + column.codes
    used, codes = _compacted(codes, math.prod(sizes))
    at = np.unravel_index(used, sizes) if len(used) else ()
    keys = [
        by.key([column.values[index] for column, index in zip(columns, indices, strict=True)])
        for indices in zip(*(array.tolist() for array in at), strict=True)
    ]
    return codes, keys


def _compacted(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """The codes that occur, of `size` that could, and the index of each row's among them."""
    if size > _MAX_TABLE:
        used, inverse = np.unique(codes, return_inverse=True)
        return used, inverse.astype(np.int64)
    used = np.flatnonzero(np.bincount(codes, minlength=size))
    index = np.zeros(size, np.int64)
    index[used] = np.arange(len(used))
    return used, index[codes]
