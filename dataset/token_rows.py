"""Token rows of a dataset, read by the conversations that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokscore.dataset.errors import InputError
from tokscore.dataset.table_files import WRITE_AGAIN, TableFile

K = TypeVar("K")
V = TypeVar("V")

_CACHED_ROW_GROUPS = 2
# Strings of few values, which stay codes.
ENCODED = ("conversation_id", "role", "source")


class Place(NamedTuple):
    """Where the rows of one conversation are.

    Attributes:
        conversation_id: Of the conversation.
        branch: 0 without branches.
        metadata: The record's metadata as JSON text, None without.
        part: Index of the part.
        first_row: Of its tokens in that part.
        n_tokens: Rows.
        n_messages: Messages, rendered or not.
    """

    conversation_id: str
    branch: int
    metadata: str | None
    part: int
    first_row: int
    n_tokens: int
    n_messages: int

    @property
    def key(self) -> tuple[str, int]:
        """The key by which conversations are matched."""
        return self.conversation_id, self.branch


def conversation_name(conversation_id: str, branch: int) -> str:
    """How messages call a conversation."""
    return f"conversation {conversation_id!r}" + (f" branch {branch}" if branch else "")


def row_faults(
    table: pa.Table, positions: NDArray[np.int64], n_messages: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Rows that are not those of their conversation, and what is wrong with each.

    Args:
        table: Token rows; of `position` and `message_index`, those that it has are looked at.
        positions: What their positions have to be.
        n_messages: Of the conversation of each row.
    """
    if "position" in table.column_names:
        found = table["position"].to_numpy()
        for row in np.flatnonzero(found != positions).tolist():
            yield row, f"row {positions[row]} has position {found[row]}; expected rows in order."
    if "message_index" in table.column_names:
        found = table["message_index"].to_numpy()
        for row in np.flatnonzero(found >= n_messages).tolist():
            yield (
                row,
                (
                    f"position {positions[row]} has message_index {found[row]}; expected less than "
                    f"{n_messages[row]}, the number of its messages."
                ),
            )


def faulty_conversations(
    places: Sequence[Place], starts: NDArray[np.int64], table: pa.Table
) -> dict[int, str]:
    """The first fault in the rows of conversations, by the index of the conversation.

    Args:
        places: The conversations.
        starts: First row of each, and the number of all rows.
        table: Their rows, one conversation after the other.
    """
    lengths = np.diff(starts)
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    n_messages = np.repeat(np.array([place.n_messages for place in places], np.int64), lengths)
    faults: dict[int, str] = {}
    for row, reason in row_faults(table, positions, n_messages):
        conversation = int(np.searchsorted(starts, row, side="right")) - 1
        name = conversation_name(*places[conversation].key)
        faults.setdefault(conversation, f"{name}: {reason} {WRITE_AGAIN}")
    return faults


def _joined(pieces: Sequence[pa.Table]) -> pa.Table:
    """One table, also where parts have the same values in different schemas, as other programs write them."""
    if all(piece.schema.equals(pieces[0].schema) for piece in pieces):
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
    return pa.concat_tables([_plain(piece) for piece in pieces], promote_options="permissive")


def _plain(table: pa.Table) -> pa.Table:
    """With columns of nullable values that are not encoded."""
    columns = [
        pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _latest(kept: dict[K, V], key: K, make: Callable[[K], V]) -> V:
    """The value of a key, of which only those used last are kept."""
    value = kept.pop(key) if key in kept else make(key)
    kept[key] = value
    if len(kept) > _CACHED_ROW_GROUPS:
        del kept[next(iter(kept))]
    return value


class TokenRows:
    """Reads token rows of a dataset by place, keeping the last few row groups."""

    def __init__(self, open_part: Callable[[int], TableFile], columns: Sequence[str]) -> None:
        """Read nothing yet.

        Args:
            open_part: The token table of a part.
            columns: Which to read.
        """
        self._open_part = open_part
        self._columns = list(dict.fromkeys(columns))
        # Caches of bound methods would be cycles, and keep their row groups until those are looked for.
        self._files: dict[int, TableFile] = {}
        self._row_groups: dict[tuple[int, int], pa.Table] = {}

    def read_all(self, wanted: Sequence[Place]) -> pa.Table:
        """The rows of some conversations, one after the other, as they are in the files.

        Raises:
            InputError: A table ends before, or is damaged.
        """
        pieces: list[pa.Table] = []
        first = 0
        while first < len(wanted):
            last = first
            stop = wanted[first].first_row + wanted[first].n_tokens
            # Neighbours are read together.
            while (
                last + 1 < len(wanted)
                and wanted[last + 1].part == wanted[first].part
                and wanted[last + 1].first_row == stop
            ):
                last += 1
                stop += wanted[last].n_tokens
            pieces += self._read(wanted[first].part, wanted[first].first_row, stop)
            first = last + 1
        if not pieces:
            return self._file(wanted[0].part).read(self._columns, [])
        return _joined(pieces)

    def read_checked(self, wanted: Sequence[Place], starts: NDArray[np.int64]) -> pa.Table:
        """As `read_all`, and the rows are those of the conversations.

        Args:
            wanted: The conversations.
            starts: First row of each in what comes back, and the number of all.

        Raises:
            InputError: Also where rows are out of order, or belong to messages that are not there.
        """
        table = self.read_all(wanted)
        for conversation, reason in faulty_conversations(wanted, starts, table).items():
            raise InputError(f"{self._file(wanted[conversation].part).path}: {reason}")
        return table

    def _read(self, part: int, first_row: int, stop: int) -> Iterator[pa.Table]:
        starts = self._file(part).group_starts
        group = int(np.searchsorted(starts, first_row, side="right")) - 1
        while group < len(starts) - 1 and starts[group] < stop:
            begin = max(first_row - starts[group], 0)
            yield self._row_group(part, group).slice(begin, stop - starts[group] - begin)
            group += 1

    def _file(self, part: int) -> TableFile:
        return _latest(self._files, part, self._open_part)

    def _row_group(self, part: int, group: int) -> pa.Table:
        return _latest(
            self._row_groups, (part, group), lambda key: self._file(key[0]).read(self._columns, [key[1]])
        )


def token_batches(
    places: Iterable[Place], rows: TokenRows, n_tokens: int
) -> Iterator[tuple[list[Place], NDArray[np.int64], pa.Table]]:
    """Conversations of one dataset in batches of at least `n_tokens` rows, with the first row of each.

    Raises:
        InputError: A file is damaged, or its rows are not those of the conversations.
    """

    def batch() -> tuple[list[Place], NDArray[np.int64], pa.Table]:
        starts = np.cumsum([0, *(each.n_tokens for each in waiting)])
        return waiting, starts, rows.read_checked(waiting, starts)

    waiting: list[Place] = []
    n_waiting = 0
    for place in places:
        waiting.append(place)
        n_waiting += place.n_tokens
        if n_waiting >= n_tokens:
            yield batch()
            waiting, n_waiting = [], 0
    if waiting:
        yield batch()
