"""Token rows of a dataset, read a row group at a time, with the group that each row belongs to."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.analytics.groups import Grouping, GroupKey, GroupValue, metadata_value
from tokscore.rendering.dataset import Dataset

T = TypeVar("T")
Codes = NDArray[np.int64]

_THREADS = 2
_STRINGS = ("conversation_id", "role", "source")


class GroupedRows(NamedTuple):
    """Rows of one row group.

    Attributes:
        codes: int64 [rows], indices into `keys`.
        keys: Of the groups that occur.
        columns: The asked-for columns.
    """

    codes: Codes
    keys: list[GroupKey]
    columns: pa.Table


class _Encoded(NamedTuple):
    """Values of one column as codes."""

    codes: Codes
    values: list[GroupValue]


def map_row_groups(
    dataset: Dataset, by: Grouping, columns: Sequence[str], function: Callable[[GroupedRows], T]
) -> Iterator[T]:
    """What `function` makes of every row group, in order; a few are in memory at a time.

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
    wanted = list(dict.fromkeys([*columns, *by.token_columns]))
    kind = dataset.manifest.kind.value
    for path, conversations in zip(dataset.files(kind), dataset.files("conversations"), strict=True):
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        known = _metadata(conversations, by)
        starts = np.cumsum([0, *sizes])
        for group, (start, stop) in enumerate(itertools.pairwise(starts)):
            part = {
                name: _Encoded(encoded.codes[start:stop], encoded.values) for name, encoded in known.items()
            }
            yield partial(_read, path, group, by, wanted, part)


def _metadata(path: Path, by: Grouping) -> dict[str, _Encoded]:
    """For each `metadata.X`, the values of the rows of one part."""
    if not by.metadata_names:
        return {}
    table = pq.read_table(path, columns=["n_tokens", "metadata"])
    lengths = table["n_tokens"].to_numpy()
    found = {}
    for name in by.metadata_names:
        codes: dict[GroupValue, int] = {}
        of_conversations = [
            codes.setdefault(metadata_value(text, name), len(codes)) for text in table["metadata"].to_pylist()
        ]
        found[name] = _Encoded(np.repeat(np.array(of_conversations, np.int64), lengths), list(codes))
    return found


def _read(
    path: Path, group: int, by: Grouping, columns: Sequence[str], known: dict[str, _Encoded]
) -> GroupedRows:
    with pq.ParquetFile(path, read_dictionary=[name for name in _STRINGS if name in by.names]) as file:
        table = file.read_row_group(group, columns=list(columns), use_threads=False)
    encoded = [known[name] if name in known else _encode(table[name]) for name in by.names]
    codes, keys = _combine(encoded, by)
    return GroupedRows(codes, keys, table)


def _encode(column: pa.ChunkedArray) -> _Encoded:
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.DictionaryArray.from_arrays([], [])
    values = array.dictionary.to_pylist()
    indices = array.indices
    if indices.null_count:
        indices, values = indices.fill_null(len(values)), [*values, None]
    return _Encoded(indices.to_numpy().astype(np.int64), values)


def _combine(columns: Sequence[_Encoded], by: Grouping) -> tuple[Codes, list[GroupKey]]:
    """One code for the codes of several columns together, and the keys of those that occur."""
    codes = columns[0].codes
    if len(columns) == 1:
        return codes, [by.key([value]) for value in columns[0].values]
    sizes = [len(column.values) for column in columns]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        codes = codes * size + column.codes
    used, inverse = np.unique(codes, return_inverse=True)
    at = np.unravel_index(used, sizes) if len(used) else ()
    keys = [
        by.key([column.values[index] for column, index in zip(columns, indices, strict=True)])
        for indices in zip(*(array.tolist() for array in at), strict=True)
    ]
    return inverse.astype(np.int64), keys
