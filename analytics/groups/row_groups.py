"""Token rows of a dataset, read a few row groups at a time, with the group that each row belongs to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.analytics.groups.grouping import Grouping, GroupKey, GroupValue, metadata_value
from tokscore.dataset.errors import InputError
from tokscore.dataset.integrity import damaged, opened
from tokscore.dataset.reading import Dataset

T = TypeVar("T")
Codes = NDArray[np.int64]

_THREADS = 2
# Rows to read at once: the cost of a call, and of merging what it found, no longer shows.
_BATCH_ROWS = 400_000
# Above this, codes that occur are found by sorting.
_MAX_TABLE = 2**16
_STRINGS = ("conversation_id", "role", "source")


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


class Encoded(NamedTuple):
    """One column as codes.

    Attributes:
        codes: int64 [rows], indices into `values`.
        values: That may occur.
    """

    codes: Codes
    values: list[GroupValue]


def map_row_groups(
    dataset: Dataset, by: Grouping, columns: Sequence[str], function: Callable[[GroupedRows], T]
) -> Iterator[T]:
    """What `function` makes of the rows, some row groups at a time and in order.

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


def _jobs(dataset: Dataset, by: Grouping, columns: Sequence[str]) -> Iterator[Callable[[], GroupedRows]]:
    in_order = ["position"] if by.metadata_names else []
    wanted = list(dict.fromkeys([*columns, *by.token_columns, *in_order]))
    kind = dataset.manifest.kind.value
    for path, conversations in zip(dataset.files(kind), dataset.files("conversations"), strict=True):
        known, positions = _metadata(conversations, by)
        n_rows = dataset.footer(path).n_rows
        metadata: pq.FileMetaData | None = None
        batches: Iterable[tuple[list[int] | None, int, int]] = [(None, 0, n_rows)]
        if n_rows > _BATCH_ROWS:
            with opened(path) as file:
                metadata = file.metadata
            batches = _batches(metadata)
        for groups, start, stop in batches:
            part = {
                name: Encoded(encoded.codes[start:stop], encoded.values) for name, encoded in known.items()
            }
            places = None if positions is None else positions[start:stop]
            yield partial(_read, path, metadata, groups, by, wanted, part, places)


def _batches(metadata: pq.FileMetaData) -> Iterator[tuple[list[int], int, int]]:
    """Row groups to read together, and their rows [start, stop) in the file."""
    groups: list[int] = []
    start = stop = 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        stop += metadata.row_group(group).num_rows
        if stop - start >= _BATCH_ROWS:
            yield groups, start, stop
            groups, start = [], stop
    if groups:
        yield groups, start, stop


def _metadata(path: Path, by: Grouping) -> tuple[dict[str, Encoded], Codes | None]:
    """For each `metadata.X`, the values of the rows of one part, and the positions that these must have."""
    if not by.metadata_names:
        return {}, None
    table = pq.read_table(path, columns=["n_tokens", "metadata"])
    lengths = table["n_tokens"].to_numpy()
    found = {}
    for name in by.metadata_names:
        codes: dict[GroupValue, int] = {}
        of_conversations = [
            codes.setdefault(metadata_value(text, name), len(codes)) for text in table["metadata"].to_pylist()
        ]
        found[name] = Encoded(np.repeat(np.array(of_conversations, np.int64), lengths), list(codes))
    n_tokens = int(lengths.sum())
    return found, np.arange(n_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _read(
    path: Path,
    metadata: pq.FileMetaData | None,
    groups: list[int] | None,
    by: Grouping,
    columns: Sequence[str],
    known: dict[str, Encoded],
    positions: Codes | None,
) -> GroupedRows:
    strings = [name for name in _STRINGS if name in by.names]
    with opened(path, metadata=metadata, read_dictionary=strings) as file:
        try:
            wanted = range(file.num_row_groups) if groups is None else groups
            table = file.read_row_groups(list(wanted), columns=list(columns), use_threads=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged(path, error) from error
    if positions is not None:
        _check_order(path, table["position"].to_numpy(), positions)
    encoded = [known[name] if name in known else encode_column(table[name]) for name in by.names]
    codes, keys = _combine(encoded, by)
    return GroupedRows(codes, keys, table)


def _check_order(path: Path, positions: NDArray[np.int32], expected: Codes) -> None:
    """Refuse rows that are not those of the conversations whose metadata they get."""
    wrong = np.flatnonzero(positions != expected)
    if len(wrong):
        raise InputError(
            f"{path}: position {positions[wrong[0]]} stands where {expected[wrong[0]]} is expected; its rows "
            "are out of order. Write the dataset again."
        )


def encode_column(column: pa.ChunkedArray) -> Encoded:
    """The codes of a column; null is a value like others."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.DictionaryArray.from_arrays([], [])
    values = array.dictionary.to_pylist()
    indices = array.indices
    if indices.null_count:
        indices, values = indices.fill_null(len(values)), [*values, None]
    return Encoded(indices.to_numpy().astype(np.int64), values)


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
