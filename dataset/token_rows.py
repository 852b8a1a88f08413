"""Token rows of a dataset, read by the conversations that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokscore.dataset.errors import InputError
from tokscore.dataset.integrity import damaged, opened
from tokscore.dataset.reading import PLAN_KEY, Dataset
from tokscore.dataset.writing import part_name

K = TypeVar("K")
V = TypeVar("V")

_CACHED_ROW_GROUPS = 2
# Strings of few values, which stay codes.
_REPEATED = ["conversation_id", "role", "source"]


class Place(NamedTuple):
    """Where the rows of one conversation are.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        metadata: The record's metadata as JSON text, None without.
        part: Index of the part.
        first_row: Of its tokens in that part.
        n_tokens: Rows.
    """

    conversation_id: str
    branch: int
    metadata: str | None
    part: int
    first_row: int
    n_tokens: int

    @property
    def key(self) -> tuple[str, int]:
        """The key by which conversations are matched."""
        return self.conversation_id, self.branch


def conversation_name(conversation_id: str, branch: int) -> str:
    """How messages call a conversation."""
    return f"conversation {conversation_id!r}" + (f" branch {branch}" if branch else "")


def places(dataset: Dataset) -> Iterator[Place]:
    """The conversations of a dataset, part after part.

    Raises:
        InputError: A conversations table belongs to another plan than the manifest.
    """
    columns = ["conversation_id", "branch", "metadata", "first_row", "n_tokens"]
    for part, path in zip(dataset.manifest.parts, dataset.files("conversations"), strict=True):
        with opened(path) as file:
            plan = (file.schema_arrow.metadata or {}).get(PLAN_KEY, b"").decode()
            if plan != dataset.manifest.plan_hash:
                raise InputError(
                    f"{path} belongs to another plan than the manifest. Write the dataset again."
                )
            try:
                for batch in file.iter_batches(columns=columns):
                    for record in batch.to_pylist():
                        yield Place(part=part.index, **record)
            except (OSError, pa.ArrowInvalid) as error:
                raise damaged(path, error) from error


def _latest(kept: dict[K, V], key: K, make: Callable[[K], V]) -> V:
    """The value of a key, of which only those used last are kept."""
    value = kept.pop(key) if key in kept else make(key)
    kept[key] = value
    if len(kept) > _CACHED_ROW_GROUPS:
        del kept[next(iter(kept))]
    return value


class TokenRows:
    """Reads token rows of a dataset by place, keeping the last few row groups."""

    def __init__(self, dataset: Dataset, columns: Sequence[str]) -> None:
        self._folder = dataset.root / dataset.manifest.kind.value
        self._columns = list(dict.fromkeys(columns))
        # Caches of bound methods would be cycles, and keep their row groups until those are looked for.
        self._files: dict[int, tuple[pq.ParquetFile, list[int]]] = {}
        self._row_groups: dict[tuple[int, int], pa.Table] = {}

    def read_all(self, wanted: Sequence[Place]) -> pa.Table:
        """The rows of some conversations, one after the other.

        Raises:
            InputError: A table ends before, or is damaged.
        """
        pieces: list[pa.Table] = []
        first = 0
        while first < len(wanted):
            last = first
            stop = wanted[first].first_row + wanted[first].n_tokens
            # Neighbours are read together.
            while last + 1 < len(wanted) and wanted[last + 1][3:5] == (wanted[first].part, stop):
                last += 1
                stop += wanted[last].n_tokens
            pieces += self._read(wanted[first].part, wanted[first].first_row, stop, wanted[last])
            first = last + 1
        if not pieces:
            return self._file(wanted[0].part)[0].schema_arrow.empty_table().select(self._columns)
        return pa.concat_tables(pieces) if len(pieces) > 1 else pieces[0]

    def _read(self, part: int, first_row: int, stop: int, last: Place) -> Iterator[pa.Table]:
        starts = self._file(part)[1]
        if stop > starts[-1]:
            raise InputError(
                f"{self._folder / part_name(part)} has {starts[-1]} rows; expected {stop}, "
                f"the end of {conversation_name(*last.key)}."
            )
        group = int(np.searchsorted(starts, first_row, side="right")) - 1
        while group < len(starts) - 1 and starts[group] < stop:
            begin = max(first_row - starts[group], 0)
            yield self._row_group(part, group).slice(begin, stop - starts[group] - begin)
            group += 1

    def _file(self, part: int) -> tuple[pq.ParquetFile, list[int]]:
        return _latest(self._files, part, self._open)

    def _row_group(self, part: int, group: int) -> pa.Table:
        return _latest(self._row_groups, (part, group), lambda key: self._read_row_group(*key))

    def _open(self, part: int) -> tuple[pq.ParquetFile, list[int]]:
        """The file, and the first row of every row group and of the end."""
        file = opened(self._folder / part_name(part), read_dictionary=_REPEATED)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return file, [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def _read_row_group(self, part: int, group: int) -> pa.Table:
        try:
            return self._file(part)[0].read_row_group(group, columns=self._columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise damaged(self._folder / part_name(part), error) from error


def token_batches(
    dataset: Dataset, columns: Sequence[str], n_tokens: int
) -> Iterator[tuple[list[Place], NDArray[np.int64], pa.Table]]:
    """Conversations of one dataset in batches of at least `n_tokens` rows, with the first row of each.

    Raises:
        InputError: A file is damaged or foreign.
    """
    reader = TokenRows(dataset, columns)
    waiting: list[Place] = []
    for place in places(dataset):
        waiting.append(place)
        if sum(each.n_tokens for each in waiting) >= n_tokens:
            yield waiting, np.cumsum([0, *(each.n_tokens for each in waiting)]), reader.read_all(waiting)
            waiting = []
    if waiting:
        yield waiting, np.cumsum([0, *(each.n_tokens for each in waiting)]), reader.read_all(waiting)
