"""Writing one part of a dataset: aside first, put in place when whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.claims.commit import committing, part_name
from tokscore.dataset.claims.processes import is_running, this_host
from tokscore.dataset.manifest import Manifest
from tokscore.dataset.rows import make_tables
from tokscore.dataset.schema import COLUMNS, ROW_GROUP_ROWS, SCHEMAS, SMALL_TABLES
from tokscore.dataset.stores.path import StorePath, is_store
from tokscore.dataset.stores.upload import Upload
from tokscore.dataset.table_files import CHECKSUMS, TOKEN_IDS_KEY, checksums
from tokscore.dataset.tokens import FailedConversation, RenderedConversation

# Makes the score columns of some conversations from what was given with each (Any: what the caller likes).
ScoreColumns = Callable[[Sequence[Any]], Mapping[str, pa.ChunkedArray]]
# What a line of errors/ holds of a `FailedConversation`; the rest is for the run that met it.
ERROR_FIELDS = ("conversation_id", "source_file", "source_line", "path", "reason")
# Beginning of the names of files that wait for their way into a store.
_SPOOLED = "tokscore-part."


def temporary_name(path: Path) -> Path:
    """Where a file is written before it is put in place: hidden, and named after host and process.

    That of a file of a store, or of a device, lies in the temporary directory of this machine.
    """
    if is_device(path):
        path = Path(tempfile.gettempdir()) / path.name
    if isinstance(path, StorePath):
        place = sha256(path.url.encode()).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"{_SPOOLED}{place}.{path.parent.name}-{path.name}"
    return path.with_name(f".{path.name}.{this_host()}.{os.getpid()}.tmp")


def is_device(path: Path) -> bool:
    """Whether it is there and is written to in place, such as /dev/null or a named pipe."""
    return not is_store(path) and path.exists() and not (path.is_file() or path.is_dir())


def is_temporary(path: Path) -> bool:
    """Whether a file is one that is being written, or was left behind by a process that was killed."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def remove_abandoned(root: Path) -> None:
    """Delete temporary files of processes that no longer run, of this host and its namespace of processes.

    Those of other hosts, containers and boots stay: their processes cannot be seen from here.
    """
    if is_store(root):
        paths = [*Path(tempfile.gettempdir()).glob(f".{_SPOOLED}*.tmp")]
    else:
        paths = [*root.glob(".*.tmp"), *root.glob("*/.*.tmp")]
    for path in paths:
        host, _, process = path.name.removesuffix(".tmp").rpartition(".")
        if host.endswith(f".{this_host()}") and process.isdigit() and not is_running(int(process)):
            path.unlink(missing_ok=True)


class Staged:
    """A whole file that was written aside, ready for its place."""

    def __init__(self, temporary: Path, final: Path) -> None:
        """Send it, where its place is in a store."""
        self._temporary, self._final = temporary, final
        self._upload = Upload(temporary, final) if isinstance(final, StorePath) else None

    def commit(self) -> None:
        """Put it in its place."""
        if self._upload is None:
            sync_rename(self._temporary, self._final)
        else:
            self._upload.commit()

    def discard(self) -> None:
        """Remove what is left of it, also after it was put in its place."""
        if self._upload is not None:
            self._upload.discard()
        self._temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, final: Path) -> None:
    """Give a whole file that was written aside its place."""
    staged = Staged(temporary, final)
    try:
        staged.commit()
    finally:
        staged.discard()


def sync_rename(temporary: Path, final: Path) -> None:
    """Rename a whole file that was written aside, on this machine; a device is written to."""
    if is_device(final):
        with temporary.open("rb") as source, final.open("wb") as target:
            shutil.copyfileobj(source, target)
        temporary.unlink()
        return
    with temporary.open("rb+") as handle:
        os.fsync(handle.fileno())
    temporary.replace(final)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` aside, then rename, so that no reader sees half of it."""
    if is_store(path):
        path.write_bytes(content)
        return
    temporary = temporary_name(path)
    temporary.write_bytes(content)
    sync_rename(temporary, path)


class _GrowingFile:
    """A Parquet file that grows by whole row groups under a temporary name."""

    def __init__(self, path: Path, table: str, metadata: dict[str, str]) -> None:
        self.path = path
        self._temporary = temporary_name(path)
        self._columns = COLUMNS[table]
        self._schema = SCHEMAS[table].with_metadata(metadata)
        self._writer: Any = None  # Any: pyarrow's writer has no types
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0

    def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary.parent.mkdir(parents=True, exist_ok=True)
        split = [
            f"{column.name}.list.element" if pa.types.is_list(column.dtype) else column.name
            for column in self._columns
            if column.is_split
        ]
        dictionary = [column.name for column in self._columns if pa.types.is_string(column.dtype)]
        self._writer = pq.ParquetWriter(
            self._temporary,
            self._schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=dictionary,
            use_byte_stream_split=split,
            write_page_checksum=True,
        )

    def append(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._n_waiting += table.num_rows
        if self._n_waiting >= ROW_GROUP_ROWS:
            self._write(self._n_waiting - self._n_waiting % ROW_GROUP_ROWS)

    def _write(self, n_rows: int) -> None:
        table = pa.concat_tables(self._waiting).cast(self._schema)
        self._writer.write_table(table.slice(0, n_rows), row_group_size=ROW_GROUP_ROWS)
        rest = table.slice(n_rows)
        self._waiting, self._n_waiting = [rest], rest.num_rows

    def describe(self, metadata: dict[str, str]) -> None:
        self._writer.add_key_value_metadata(metadata)

    def close(self) -> Path:
        """Write what waits, and say where the whole file is until it gets its place."""
        if self._n_waiting:
            self._write(self._n_waiting)
        self._writer.close()
        return self._temporary

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._temporary.unlink(missing_ok=True)


class PartWriter:
    """Writes one part; only `finish` makes it visible, the token table last.

    Use it as a context manager: leaving it without `finish` removes what was written.
    """

    def __init__(
        self, root: Path, manifest: Manifest, index: int, score_columns: ScoreColumns | None = None
    ) -> None:
        """Write part `index` of the dataset in `root`.

        Args:
            root: The dataset.
            manifest: Its manifest.
            index: Of the part.
            score_columns: For a score dataset; a thread calls it with some of what `add` took, in order.
        """
        metadata = manifest.parquet_metadata()
        self._score_columns = score_columns
        self._root = root
        self._index = index
        self._kind = manifest.kind
        self._errors_path = root / "errors" / part_name(index, "jsonl")
        self._checksums_path = root / CHECKSUMS / part_name(index, "json")
        self._failures: list[FailedConversation] = []
        self._schema = SCHEMAS[manifest.kind]
        self._spans, self._messages, self._conversations, self._tokens = (
            _GrowingFile(root / table / part_name(index), table, metadata)
            for table in (*SMALL_TABLES, manifest.kind.value)
        )
        self._waiting: list[tuple[RenderedConversation, object]] = []
        self._n_waiting = self._n_rows = 0
        self._ids = sha256()
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._finished = False

    @property
    def _tables(self) -> tuple[_GrowingFile, ...]:
        return self._spans, self._messages, self._conversations, self._tokens

    def __enter__(self) -> Self:
        try:
            for table in self._tables:
                table.open()
        except BaseException:  # A signal, too: nothing else would remove the files.
            self._discard()
            raise
        return self

    def _discard(self) -> None:
        for table in self._tables:
            table.discard()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What the thread writes to may not be closed under it.
        self._thread.shutdown()
        if not self._finished:
            self._discard()

    def fail(self, failure: FailedConversation) -> None:
        """List a conversation among the errors of this part."""
        self._failures.append(failure)

    def add(self, conversation: RenderedConversation, scores: object = None) -> None:
        """Append one conversation; a thread makes and writes the rows, a row group at a time.

        Args:
            conversation: Its tokens and what is known of it.
            scores: What `score_columns` makes its columns of.

        Raises:
            OSError: Rows that were appended before could not be written.
        """
        self._waiting.append((conversation, scores))
        self._n_waiting += len(conversation.tokens)
        if self._n_waiting >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Have the thread write what waits, when it is done with what it had before."""
        self._settle()
        if self._waiting:
            self._writing = self._thread.submit(self._write_rows, self._waiting, self._n_rows)
            self._n_rows += self._n_waiting
            self._waiting, self._n_waiting = [], 0

    def _settle(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write_rows(self, waiting: Sequence[tuple[RenderedConversation, object]], first_row: int) -> None:
        conversations = [conversation for conversation, _ in waiting]
        tables = make_tables(conversations, part=self._index, first_row=first_row)
        columns = tables.tokens
        if self._score_columns is not None:
            columns |= self._score_columns([scores for _, scores in waiting])
        self._ids.update(columns["token_id"].to_numpy().astype("<i4").tobytes())
        self._tokens.append(pa.table([columns[name] for name in self._schema.names], schema=self._schema))
        self._spans.append(tables.spans)
        self._messages.append(tables.messages)
        self._conversations.append(tables.conversations)

    def append(self, table: str, rows: pa.Table) -> None:
        """Append rows that are made already to one of the tables, instead of conversations.

        Args:
            table: Its name.
            rows: With all columns; places in other tables are those of this part.
        """
        if table == self._kind:
            self._ids.update(rows["token_id"].to_numpy().astype("<i4").tobytes())
        next(each for each in self._tables if each.path.parent.name == table).append(rows)

    def describe(self, metadata: dict[str, str]) -> None:
        """Add key-value metadata to the token table."""
        self._tokens.describe(metadata)

    def finish(self) -> bool:
        """Flush all files and put them in place; the token table, last, marks the part done.

        What goes into a store is sent before anybody is kept from the part.

        Returns:
            False where another process finished the part meanwhile: its files stay, and these are dropped.
        """
        self._flush()
        self._settle()
        self.describe({TOKEN_IDS_KEY: self._ids.hexdigest()})
        lines = b"".join(_failure_line(failure) for failure in self._failures)
        aside = {path: temporary_name(path) for path in (self._errors_path, self._checksums_path)}
        for path in aside:
            path.parent.mkdir(parents=True, exist_ok=True)
        staged: list[Staged] = []
        try:
            aside[self._errors_path].write_bytes(lines)
            closed = {table.path: table.close() for table in self._tables}
            tables = {path.parent.name: temporary for path, temporary in closed.items()}
            aside[self._checksums_path].write_bytes(checksums({"errors": aside[self._errors_path], **tables}))
            staged.extend(Staged(temporary, path) for path, temporary in (aside | closed).items())
            with committing(self._root, self._kind.value, self._index) as is_first:
                if is_first:
                    for each in staged:
                        each.commit()
                    self._finished = True
        finally:
            for each in staged:
                each.discard()
            for temporary in aside.values():
                temporary.unlink(missing_ok=True)
        return self._finished


def _failure_line(failure: FailedConversation) -> bytes:
    return msgspec.json.encode({name: getattr(failure, name) for name in ERROR_FIELDS}) + b"\n"
