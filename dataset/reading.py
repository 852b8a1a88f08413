"""Finished datasets: checked when they are opened, and read conversation by conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.dataset.claims.commit import finished_names, part_name
from tokscore.dataset.errors import InputError, agreeing, counted
from tokscore.dataset.files import PathName, location
from tokscore.dataset.manifest import Manifest, Part, read_manifest
from tokscore.dataset.rows import STORED_COLUMNS, stored_tokens
from tokscore.dataset.schema import SMALL_TABLES, VOCABULARY, DatasetKind
from tokscore.dataset.stores.ends import ends_of
from tokscore.dataset.stores.path import StorePath, is_store
from tokscore.dataset.table_files import CHECKSUMS, WRITE_AGAIN, TableFile, check_checksums, part_files
from tokscore.dataset.token_rows import ENCODED, Place, TokenRows, conversation_name
from tokscore.dataset.tokens import ConversationRow, FailedConversation, MessageFacts, RenderedConversation

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY_NAME = "vocab.parquet"
VOCABULARY_CHECKSUM = "vocab.json"
# Parts whose footers are fetched from a store together.
_TOGETHER = 64


def list_folders(root: Path, kind: str) -> None:
    """Have a store say once which files a dataset has; nothing else asks for each of them."""
    if is_store(root):
        for folder in (root, *(root / name for name in (kind, *SMALL_TABLES, "errors", CHECKSUMS))):
            with suppress(FileNotFoundError):
                folder.iterdir()


class StoredConversation(NamedTuple):
    """A row of the conversations table.

    Attributes:
        row: What it says of the conversation.
        place: Where its tokens are.
        messages: What the messages table says.
    """

    row: ConversationRow
    place: Place
    messages: tuple[MessageFacts, ...]


class Dataset:
    """A finished dataset directory, for reading; what takes a path takes it too.

    Attributes:
        root: The directory.
        manifest: Its manifest.
        n_with_tokens: Conversations (or branches) that have tokens.
        n_parts_missing: Parts that a run has not written yet, of a dataset that is read in part.
    """

    def __init__(self, root: PathName, *, kind: DatasetKind | None = None, partial: bool = False) -> None:
        """Open the dataset at `root`, and check that all its parts are there and belong together.

        Args:
            root: The directory.
            kind: Which is expected.
            partial: Read the parts that are there, of a run that is not finished; `manifest.parts` has these.

        Raises:
            InputError: No dataset, or of another kind than asked for; a file is missing, damaged, of another
                plan, or has other columns or more or fewer rows than the rest.
        """
        self.root = root = location(root)
        self.manifest = read_manifest(root)
        if kind is not None and self.manifest.kind is not kind:
            raise InputError(
                f"{root} is a dataset of {self.manifest.kind.value}; expected {kind.value}"
                + (" (run tokscore logprobs on it first)." if kind is DatasetKind.SCORES else ".")
            )
        list_folders(root, self.manifest.kind.value)
        indices = {part.index for part in self.manifest.parts}
        done = finished_names(root, self.manifest.kind.value, indices)
        missing = [
            self.path(self.manifest.kind, part.index)
            for part in self.manifest.parts
            if part.index not in done
        ]
        self.n_parts_missing = len(missing)
        if partial and len(missing) < len(self.manifest.parts):
            there = [part for part in self.manifest.parts if part.index in done]
            self.manifest = msgspec.structs.replace(self.manifest, parts=there)
        elif missing:
            n = len(self.manifest.parts)
            raise InputError(
                f"{root} is not finished: {len(missing)} of {counted(n, 'part')} {agreeing(n, 'is', 'are')} "
                f"missing, the first is {missing[0].name}.\n"
                "Run the command that writes it again; it goes on where it stopped."
                + ("" if partial else " `partial=True` reads the parts that are there.")
            )
        self._check_parts()

    @classmethod
    def of_part(cls, root: Path, manifest: Manifest, part: Part) -> Self:
        """One finished part of a dataset whose manifest is known; errors as of a whole one."""
        opened = cls.__new__(cls)
        opened.root, opened.n_parts_missing = root, len(manifest.parts) - 1
        opened.manifest = msgspec.structs.replace(manifest, parts=[part])
        opened._check_parts()
        return opened

    def _check_parts(self) -> None:
        self._n_rows: dict[tuple[str, int], int] = {}
        self.n_with_tokens = 0
        parts = self.manifest.parts
        for start in range(0, len(parts), _TOGETHER):
            some = parts[start : start + _TOGETHER]
            with ends_of(
                [
                    path
                    for part in some
                    for name in part_files(self.manifest.kind, part.index)
                    if isinstance(path := self.root / name, StorePath)
                ]
            ):
                for part in some:
                    self._check_part(part.index)

    def __fspath__(self) -> str:
        return str(self.root)

    def __repr__(self) -> str:
        return f"Dataset({str(self.root)!r}, {self.manifest.kind.value})"

    def _check_part(self, index: int) -> None:
        for table in (self.manifest.kind.value, *SMALL_TABLES):
            with self.open_part(table, index) as file:
                self._n_rows[table, index] = file.footer.n_rows
                if file.footer.plan_hash not in self.manifest.plans_of(index):
                    raise InputError(f"{file.path} belongs to another plan than the manifest. {WRITE_AGAIN}")
                if table == "conversations":
                    self._check_lengths(file, index)
        errors = self.root / "errors" / part_name(index, "jsonl")
        if not errors.is_file():
            raise InputError(f"{errors} is missing, though its part is finished. {WRITE_AGAIN}")
        tables = {table: self.path(table, index) for table in (*SMALL_TABLES, self.manifest.kind.value)}
        check_checksums(self.root / CHECKSUMS / part_name(index, "json"), {"errors": errors, **tables})

    def _check_lengths(self, conversations: TableFile, index: int) -> None:
        """Refuse a part whose tables have not the rows that its conversations have."""
        names = ("part", "first_row", "n_tokens", "n_messages")
        table = conversations.read(names, use_threads=False)
        parts, first_rows, n_tokens, n_messages = (table[name].to_numpy() for name in names)
        stops = np.cumsum(n_tokens, dtype=np.int64)
        for name, found, wanted in (
            ("part", parts, np.full(len(parts), index)),
            ("first_row", first_rows, stops - n_tokens),
        ):
            if not np.array_equal(found, wanted):
                row = int(np.flatnonzero(found != wanted)[0])
                raise InputError(
                    f"{conversations.path} has {found[row]} in column {name}, row {row}; expected "
                    f"{wanted[row]}. {WRITE_AGAIN}"
                )
        for name, lengths, noun in (
            (self.manifest.kind.value, n_tokens, "tokens"),
            ("messages", n_messages, "messages"),
        ):
            n_rows, n_expected = self._n_rows[name, index], int(lengths.sum(dtype=np.int64))
            if n_rows != n_expected:
                raise InputError(
                    f"{self.path(name, index)} has {n_rows} rows; expected {n_expected}, the {noun} of its "
                    f"conversations. {WRITE_AGAIN}"
                )
        self.n_with_tokens += int(np.count_nonzero(n_tokens))

    def n_conversations(self) -> int:
        """Rows of the conversations table."""
        return self.n_rows("conversations")

    def n_rows(self, table: str, part: int | None = None) -> int:
        """Rows of a table, of one part or of all."""
        parts = [each.index for each in self.manifest.parts] if part is None else [part]
        return sum(self._n_rows[table, index] for index in parts)

    def path(self, table: str, part: int) -> Path:
        """Where a part of a table is."""
        return self.root / table / part_name(part)

    def files(self, table: str) -> list[Path]:
        """Paths of all parts of one table, in plan order."""
        return [self.path(table, part.index) for part in self.manifest.parts]

    def open_part(
        self,
        table: str,
        part: int,
        *,
        encoded: Sequence[str] = (),
        metadata: pq.FileMetaData | None = None,
    ) -> TableFile:
        """A part of a table for reading; arguments and errors are those of `TableFile`."""
        return TableFile(self.path(table, part), table, encoded=encoded, metadata=metadata)

    def batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """A table row group by row group, in plan order.

        Raises:
            InputError: A file is damaged.
        """
        for part in self.manifest.parts:
            with self.open_part(table, part.index) as file:
                yield from file.batches(columns)

    def token_rows(self, columns: Sequence[str]) -> TokenRows:
        """A reader of token rows by conversation."""
        kind = self.manifest.kind.value
        encoded = [name for name in ENCODED if name in columns]
        return TokenRows(lambda part: self.open_part(kind, part, encoded=encoded), columns)

    def part_bytes(self, part: int) -> int:
        """Bytes of one part of the token table."""
        return self.path(self.manifest.kind.value, part).stat().st_size

    def places(self, part: int | None = None) -> Iterator[Place]:
        """Where the conversations of one part are, or of all in plan order.

        Raises:
            InputError: A conversations table is damaged.
        """
        columns = ["conversation_id", "branch", "metadata", "part", "first_row", "n_tokens", "n_messages"]
        for index in [each.index for each in self.manifest.parts] if part is None else [part]:
            with self.open_part("conversations", index) as file:
                for batch in file.batches(columns):
                    for record in batch.to_pylist():
                        yield Place(**record)

    def stored(self, part: int) -> Iterator[StoredConversation]:
        """The conversations of one part with what is known of their messages, without their tokens.

        Raises:
            InputError: A table is damaged, or messages are not those of the conversations.
        """
        with self.open_part("messages", part) as file:
            messages = file.read()
        first_message = 0
        with self.open_part("conversations", part) as file:
            for batch in file.batches():
                lengths = batch["n_messages"].to_numpy()
                facts = messages.slice(first_message, int(lengths.sum()))
                self._check_messages(part, batch, facts, lengths)
                first_message += facts.num_rows
                stop = 0
                for record in batch.to_pylist():
                    start, stop = stop, stop + record["n_messages"]
                    yield StoredConversation(
                        ConversationRow(**{name: record[name] for name in ConversationRow._fields}),
                        Place(**{name: record[name] for name in Place._fields}),
                        tuple(_facts(message) for message in facts.slice(start, stop - start).to_pylist()),
                    )

    def _check_messages(
        self,
        part: int,
        conversations: pa.Table,
        messages: pa.Table,
        lengths: NDArray[np.int32],
    ) -> None:
        owners = np.repeat(np.arange(len(lengths)), lengths)
        index = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        expected = {
            name: conversations[name].take(pa.array(owners)) for name in ("conversation_id", "branch")
        }
        for name, values in {**expected, "message_index": pa.array(index, pa.int32())}.items():
            if not pc.all(pc.equal(messages[name], values)).as_py() and len(owners):
                raise InputError(
                    f"{self.path('messages', part)} has another {name} than its conversations. {WRITE_AGAIN}"
                )
        owned = np.bincount(owners, messages["n_tokens"].to_numpy(), minlength=len(lengths))
        expected_tokens = conversations["n_tokens"].to_numpy() - conversations["n_no_message"].to_numpy()
        for row in np.flatnonzero(owned != expected_tokens)[:1].tolist():
            name = conversation_name(
                conversations["conversation_id"][row].as_py(), conversations["branch"][row].as_py()
            )
            raise InputError(
                f"{self.path('messages', part)}: {name}: its messages have {owned[row]:.0f} tokens; expected "
                f"{expected_tokens[row]}, those of its conversation that have a message. {WRITE_AGAIN}"
            )

    @property
    def has_vocabulary(self) -> bool:
        """Whether it carries one; the tokens of others have no text."""
        return (self.root / VOCABULARY_NAME).is_file()

    def vocabulary(
        self, columns: Sequence[str] = tuple(VOCABULARY.names), token_ids: set[int] | None = None
    ) -> pa.Table:
        """Some columns of some or all rows of the vocabulary table.

        Raises:
            InputError: There is none, or it is damaged.
        """
        if not self.has_vocabulary:
            raise InputError(
                f"{self.root} has no {VOCABULARY_NAME}, so its tokens have no text. {WRITE_AGAIN}"
            )
        path = self.root / VOCABULARY_NAME
        with TableFile(path, "vocabulary") as file:
            table = file.read(columns)
        check_checksums(self.root / CHECKSUMS / VOCABULARY_CHECKSUM, {VOCABULARY_NAME: path})
        if token_ids is None:
            return table
        return table.filter(pc.is_in(table["token_id"], pa.array(sorted(token_ids), pa.int32())))

    def token_bytes(self, token_ids: set[int]) -> dict[int, bytes]:
        """What ids stand for, by the vocabulary; empty without one.

        Raises:
            InputError: It is damaged.
        """
        if not token_ids or not self.has_vocabulary:
            return {}
        table = self.vocabulary(["token_id", "text", "bytes"], token_ids)
        return {
            row["token_id"]: row["text"].encode() if row["bytes"] is None else row["bytes"]
            for row in table.to_pylist()
        }

    def failures(self, part: int | None = None) -> Iterator[FailedConversation]:
        """The error rows of one part, or of all in plan order.

        Raises:
            InputError: A line is none that tokscore wrote.
        """
        indices = [each.index for each in self.manifest.parts] if part is None else [part]
        return chain.from_iterable(read_failures(self.root, index) for index in indices)

    def conversations(self) -> Iterator[RenderedConversation]:
        """All conversations with their tokens as arrays, in plan order, one held at a time."""
        for part in self.manifest.parts:
            yield from self.read_part(part.index)

    def read_part(self, index: int) -> Iterator[RenderedConversation]:
        """The conversations of one part with their tokens, by row groups.

        Raises:
            InputError: A table is damaged, or rows are not those of the conversations.
        """
        rows = self.token_rows(["position", *STORED_COLUMNS])
        for each in self.stored(index):
            table = rows.read_checked([each.place], np.array([0, each.place.n_tokens]))
            yield RenderedConversation(each.row, stored_tokens(table, each.messages))


def _facts(record: dict[str, Any]) -> MessageFacts:  # Any: of a column
    values = {name: record[name] for name in MessageFacts._fields}
    return MessageFacts(**values | {"flags": tuple(record["flags"])})


class _FailureLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of errors/."""

    conversation_id: str
    source_file: str
    source_line: Annotated[int, msgspec.Meta(ge=0)]
    path: str
    reason: str


def read_failures(root: Path, part: int) -> Iterator[FailedConversation]:
    """The error rows of one part of a dataset, of which other parts may be missing.

    Raises:
        InputError: A line is none that tokscore wrote.
    """
    path = root / "errors" / part_name(part, "jsonl")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    found = msgspec.json.decode(line, type=_FailureLine)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    raise InputError(
                        f"{path}:{number} is no line of tokscore ({error}). {WRITE_AGAIN}"
                    ) from error
                yield FailedConversation(**msgspec.structs.asdict(found))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
