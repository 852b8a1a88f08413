"""The files of a dataset, read in one way: schema, pages and checksums are checked, and failures named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.errors import InputError
from tokscore.dataset.schema import COLUMNS, SMALL_TABLES, Column, DatasetKind
from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.tokens import NO_MESSAGE

WRITE_AGAIN = "Write the dataset again."
_PLAN_KEY = b"tokscore.plan_hash"
# Key of the Parquet metadata of a token table: sha256 of its ids as int32, the least byte first.
TOKEN_IDS_KEY = "tokscore.token_ids_sha256"  # noqa: S105
# Folder of a dataset; those that older versions wrote have none.
CHECKSUMS = "checksums"
_MAGIC = b"PAR1"
# Length of a footer and the magic number, behind it.
_END_BYTES = 8
_STRING = pa.string()
_SCHEMA_KEY = b"ARROW:schema"
# What pyarrow raises over bytes that are none of its format.
_FAILURES = (OSError, pa.ArrowException, ValueError, MemoryError, OverflowError)
# Tables with schemas that were held against `COLUMNS` already; many parts have the same one.
_checked: set[tuple[tuple[str, ...], bytes, int]] = set()


def part_files(kind: DatasetKind, index: int) -> list[str]:
    """Names of all files of a part in its dataset; the token table, which marks it done, is the last."""
    return [
        f"errors/{part_name(index, 'jsonl')}",
        f"{CHECKSUMS}/{part_name(index, 'json')}",
        *(f"{table}/{part_name(index)}" for table in (*SMALL_TABLES, kind.value)),
    ]


class Footer(NamedTuple):
    """The footer of a Parquet file.

    Attributes:
        plan_hash: Of the manifest it was written for; empty where a file says nothing.
        n_rows: Its rows.
    """

    plan_hash: str
    n_rows: int


class TableFile:
    """One part of a table, open for reading.

    Attributes:
        path: Of the file.
        footer: What its end says.
        metadata: All of it, as pyarrow has it.
    """

    def __init__(
        self,
        path: Path,
        table: str | Sequence[Column],
        *,
        encoded: Sequence[str] = (),
        metadata: pq.FileMetaData | None = None,
        hint: str = WRITE_AGAIN,
    ) -> None:
        """Open a file and check that it has the columns of its table.

        Args:
            path: The file.
            table: Whose part it is: a name in `schema.COLUMNS`, or the columns of another table.
            encoded: Columns of strings to read as codes.
            metadata: As another `TableFile` of this file had it, which saves reading it again.
            hint: What to do where the file is damaged.

        Raises:
            InputError: It is no Parquet file, cut, or lacks a column; or one is of another type.
        """
        self.path = path
        columns = COLUMNS[table] if isinstance(table, str) else table
        self._columns = {column.name: column for column in columns}
        self._hint = hint
        try:
            self._file = pq.ParquetFile(
                path.ranges() if isinstance(path, StorePath) else path,
                metadata=metadata,
                read_dictionary=list(encoded),
                page_checksum_verification=True,
                # Of a store, the pages of neighbouring columns come in one call.
                pre_buffer=isinstance(path, StorePath),
            )
            self.metadata = self._file.metadata
            said: dict[bytes, bytes] = self.metadata.metadata or {}
            plan_hash = said.get(_PLAN_KEY, b"").decode("ascii", "replace")
        except _FAILURES as error:
            if isinstance(error, FileNotFoundError):
                raise InputError(f"{path} is missing, though its part is finished. {hint}") from error
            raise self._error(f"is no whole Parquet file ({_text(error)}).", error) from error
        self.footer = Footer(plan_hash, int(self.metadata.num_rows))
        seen = (tuple(self._columns), said.get(_SCHEMA_KEY, b""), self.metadata.num_columns)
        if seen not in _checked:
            self._check_columns()
            if seen[1]:
                _checked.add(seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    @cached_property
    def group_starts(self) -> list[int]:
        """First row of every row group, and the number of all rows."""
        sizes = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def read(
        self,
        columns: Sequence[str] | None = None,
        groups: Sequence[int] | None = None,
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Some columns of some row groups; all by default.

        Raises:
            InputError: With the column that is damaged, has nulls where there may be none, or holds what
                cannot be.
        """
        names = list(self._columns if columns is None else columns)
        wanted = list(range(self.metadata.num_row_groups) if groups is None else groups)
        beside = ["message_index"] if "role" in names and "message_index" in self._columns else []
        try:
            table = self._file.read_row_groups(
                wanted, columns=list(dict.fromkeys([*names, *beside])), use_threads=use_threads
            )
        except _FAILURES as error:
            if set(beside) <= set(names):
                raise self._damaged(names, wanted, error) from error
            beside = []  # whoever needs it says what is wrong with it
            try:
                table = self._file.read_row_groups(wanted, columns=names, use_threads=use_threads)
            except _FAILURES as found:
                raise self._damaged(names, wanted, found) from found
        for name in names:
            if self._columns[name].is_added and name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), self._columns[name].dtype))
        for name in names:
            self._check_values(self._columns[name], table)
        if beside:
            self._check_owners(table, 0 if not wanted else self.group_starts[wanted[0]])
        return table.drop_columns([name for name in beside if name not in names])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The row groups one by one; errors as of `read`."""
        for group in range(self.metadata.num_row_groups):
            yield self.read(columns, [group])

    def _error(self, text: str, error: Exception | None = None) -> InputError:
        # Only failures of this machine have a number.
        if isinstance(error, OSError) and error.errno is not None:
            return InputError(f"{self.path} cannot be read: {error.strerror}.")
        return InputError(f"{self.path} {text} {self._hint}")

    def _damaged(self, names: list[str], groups: list[int], error: Exception) -> InputError:
        for name in names:
            try:
                self._file.read_row_groups(groups, columns=[name], use_threads=False)
            except _FAILURES as found:
                return self._error(f"is damaged: column {name} cannot be read ({_text(found)}).", found)
        return self._error(f"is damaged ({_text(error)}).", error)

    def _check_columns(self) -> None:
        try:
            fields = {field.name: field for field in self._file.schema_arrow}
        except _FAILURES as error:
            raise self._error(f"is no whole Parquet file ({_text(error)}).", error) from error
        for column in self._columns.values():
            self._check_type(column, fields[column.name].type if column.name in fields else None)

    def _check_type(self, column: Column, found: pa.DataType | None) -> None:
        if found is None and column.is_added:
            return
        if found is None:
            raise self._error(f"has no column {column.name}; expected {column.dtype}.")
        if isinstance(found, pa.DictionaryType):
            found = found.value_type
        if found != column.dtype:
            raise self._error(f"has {found} in column {column.name}; expected {column.dtype}.")

    def _check_values(self, column: Column, table: pa.Table) -> None:
        if column.name not in table.column_names:
            self._check_type(column, None)
        values = table[column.name]
        self._check_type(column, values.type)
        if values.null_count and not column.nullable:
            raise self._error(f"has nulls in column {column.name}; expected none.")
        if isinstance(column.dtype, pa.ListType):
            values = pa.chunked_array([chunk.values for chunk in values.chunks], column.dtype.value_type)
            if values.null_count:
                raise self._error(f"has nulls in lists of column {column.name}; expected none.")
        if column.least is not None:
            least = _least(values)
            if least is not None and least < column.least:
                raise self._error(f"has {least} in column {column.name}; expected at least {column.least}.")
        if column.dtype == _STRING:
            try:
                values.validate(full=True)
            except _FAILURES as error:
                raise self._error(f"has no text in column {column.name} ({_text(error)}).") from error

    def _check_owners(self, table: pa.Table, first_row: int) -> None:
        """A token of a message has its role, and no other token has one."""
        indices, roles = table["message_index"].to_numpy(), table["role"]
        is_wrong = roles.is_null().to_numpy() != (indices == NO_MESSAGE)
        # What it is where it is null, whoever reads it asks.
        wrong = np.flatnonzero(is_wrong & ~np.isnan(indices))
        if len(wrong):
            row = int(wrong[0])
            raise self._error(
                f"has role {roles[row].as_py()} and message_index {indices[row]} in row {first_row + row}; "
                "expected a role where there is a message, and only there."
            )


def _least(values: pa.ChunkedArray) -> int | None:
    """The smallest value; None where all are null."""
    if values.null_count:
        least: int | None = pc.min(values).as_py()
        return least
    # On few rows numpy takes a tenth of the time.
    return min((int(chunk.to_numpy().min()) for chunk in values.chunks if len(chunk)), default=None)


def _text(error: Exception) -> str:
    """The first line of its message, without the full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _checksum(path: Path) -> str:
    """sha256 of a file; of a Parquet file of its length and its footer.

    Source:
        Apache Parquet, File Format: the footer lies before its length in four bytes and the magic number. It
        says where every page lies, and pages have checksums of their own.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        footer = _footer_bytes(file, size)
        if footer:
            return hashlib.sha256(str(size).encode() + footer).hexdigest()
        file.seek(0)
        return hashlib.sha256(file.read(size)).hexdigest()


def _footer_bytes(file: IO[bytes], size: int) -> bytes:
    """The footer of a Parquet file with its length and the magic number; nothing where it ends otherwise."""
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    length = int.from_bytes(end[:-4], "little") + _END_BYTES
    if not end.endswith(_MAGIC) or length > size - len(_MAGIC):
        return b""
    file.seek(size - length)
    return file.read(length)


def is_of_plan(path: Path) -> bool:
    """Whether a file ends with the footer of a part, which is written last and names a plan.

    Takes a tenth of the time of a `TableFile`, as the footer is not parsed.
    """
    try:
        with path.open("rb", buffering=0) as file:
            return _PLAN_KEY in _footer_bytes(file, file.seek(0, 2))
    except OSError:
        return False


def checksums(files: Mapping[str, Path]) -> bytes:
    """A JSON object with the checksum of every file by its name.

    Args:
        files: By the name they have, also where they lie under another one until they are renamed.
    """
    return msgspec.json.encode({name: _checksum(path) for name, path in files.items()}) + b"\n"


def check_checksums(path: Path, files: Mapping[str, Path]) -> None:
    """Refuse files that are not those whose checksums were written.

    Args:
        path: What `checksums` made; nothing is checked where its folder is missing.
        files: By name, all that it has.

    Raises:
        InputError: A file was changed, or is that of another part.
    """
    if not path.parent.is_dir():
        return
    try:
        with path.open("rb") as written:
            expected = msgspec.json.decode(written.read(), type=dict[str, str])
        found = {name: _checksum(file) for name, file in files.items()}
    except FileNotFoundError as error:
        raise InputError(
            f"{error.filename} is missing, though its part is finished. {WRITE_AGAIN}"
        ) from error
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(f"{path} holds no checksums ({error}). {WRITE_AGAIN}") from error
    if expected.keys() != found.keys():
        raise InputError(
            f"{path} has checksums of {', '.join(expected) or 'nothing'}; expected {', '.join(found)}. "
            f"{WRITE_AGAIN}"
        )
    for name, file in files.items():
        if found[name] != expected[name]:
            raise InputError(
                f"{file} was changed after it was written: its checksum is another. {WRITE_AGAIN}"
            )
