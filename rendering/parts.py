"""Writing one part of a dataset: aside first, renamed when whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.rendering.manifest import Manifest
from tokscore.rendering.rendered import (
    NO_MESSAGE,
    ConversationRow,
    FailedConversation,
    RenderedConversation,
    RenderedTokens,
)
from tokscore.rendering.spans import message_counts, positions_in_message, run_starts
from tokscore.rendering.tables import CONVERSATIONS, MESSAGES, ROW_GROUP_ROWS, SPANS, TOKEN_TABLES

_FLOATS = ("logprob", "entropy", "recorded_logprob", "top_logprobs.list.element")
_SPLIT = (*_FLOATS, "top_ids.list.element")


def part_name(index: int, suffix: str = "parquet") -> str:
    """File name of one part of a table."""
    return f"part-{index:05d}.{suffix}"


def temporary_name(path: Path) -> Path:
    """Where a file is written before it is renamed: hidden, and named after host and process."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def remove_abandoned(root: Path) -> None:
    """Delete temporary files of processes of this host that no longer run."""
    for path in [*root.glob(".*.tmp"), *root.glob("*/.*.tmp")]:
        host, _, process = path.name.removesuffix(".tmp").rpartition(".")
        if host.endswith(f".{socket.gethostname()}") and process.isdigit() and not _is_running(int(process)):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_rename(temporary: Path, final: Path) -> None:
    with temporary.open("rb+") as handle:
        os.fsync(handle.fileno())
    temporary.replace(final)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` aside, then rename, so that no reader sees half of it."""
    temporary = temporary_name(path)
    temporary.write_bytes(content)
    _sync_rename(temporary, path)


class _TableFile:
    """A Parquet file that grows by whole row groups under a temporary name."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict[str, str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._temporary = temporary_name(path)
        self._schema = schema.with_metadata(metadata)
        split = [name for name in _SPLIT if schema.get_field_index(name.split(".")[0]) >= 0]
        dictionary = [field.name for field in schema if pa.types.is_string(field.type)]
        self._writer = pq.ParquetWriter(
            self._temporary,
            self._schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=dictionary,
            use_byte_stream_split=split,
            write_page_checksum=True,
        )
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0

    def append(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._n_waiting += table.num_rows
        if self._n_waiting >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._n_waiting:
            table = pa.concat_tables(self._waiting).cast(self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._n_waiting = [], 0

    def finish(self) -> None:
        self._flush()
        self._writer.close()
        _sync_rename(self._temporary, self.path)

    def discard(self) -> None:
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


class PartWriter:
    """Writes one part; only `finish` makes it visible, the token table last.

    Use it as a context manager: leaving it without `finish` removes what was written.
    """

    def __init__(self, root: Path, manifest: Manifest, index: int) -> None:
        metadata = manifest.parquet_metadata()
        self._index = index
        self._kind = manifest.kind
        self._errors_path = root / "errors" / part_name(index, "jsonl")
        self._failures: list[FailedConversation] = []
        self._schema = TOKEN_TABLES[manifest.kind]
        self._spans = _TableFile(root / "spans" / part_name(index), SPANS, metadata)
        self._messages = _TableFile(root / "messages" / part_name(index), MESSAGES, metadata)
        self._conversations = _TableFile(root / "conversations" / part_name(index), CONVERSATIONS, metadata)
        self._tokens = _TableFile(root / manifest.kind.value / part_name(index), self._schema, metadata)
        self._n_rows = 0
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            for table in (self._spans, self._messages, self._conversations, self._tokens):
                table.discard()

    def fail(self, failure: FailedConversation) -> None:
        """List a conversation among the errors of this part."""
        self._failures.append(failure)

    def add(self, conversation: RenderedConversation, scores: dict[str, pa.Array] | None = None) -> None:
        """Append one conversation.

        Args:
            conversation: Its tokens and what is known of it.
            scores: The score columns by name, each of length [tokens]; only for score datasets.
        """
        row, tokens = conversation
        columns = token_columns(row, tokens)
        if scores is not None:
            columns |= scores
        self._tokens.append(pa.table([columns[name] for name in self._schema.names], schema=self._schema))
        self._spans.append(_span_table(row, tokens))
        messages, totals = _message_table(row, tokens)
        self._messages.append(messages)
        self._conversations.append(_conversation_table(row, tokens, totals, self._index, self._n_rows))
        self._n_rows += len(tokens)

    def finish(self) -> None:
        """Flush and rename all files; the token table, last, marks the part done."""
        lines = b"".join(_failure_line(failure) for failure in self._failures)
        self._errors_path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._errors_path, lines)
        for table in (self._spans, self._messages, self._conversations, self._tokens):
            table.finish()
        self._finished = True


def _failure_line(failure: FailedConversation) -> bytes:
    fields = failure._asdict()
    del fields["hint"], fields["is_known"]  # for the run that met it
    return msgspec.json.encode(fields) + b"\n"


class _Totals(NamedTuple):
    n_sampled: int | None
    n_content: int


def _repeated(value: str | int | None, n: int, dtype: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, dtype), n)


def _nullable_bool(mask: np.ndarray[tuple[int], np.dtype[np.int8]]) -> pa.Array:
    return pa.array(mask == 1, mask=mask == -1)


def _by_message(
    values: Sequence[str | None], indices: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> pa.Array:
    """A value of each token's message; null at -1."""
    where = pa.array(indices, pa.int32(), mask=indices == NO_MESSAGE)
    return pa.array(values, pa.string()).take(where)


def token_columns(row: ConversationRow, tokens: RenderedTokens) -> dict[str, pa.Array]:
    """The columns of `tables.TOKENS` for one conversation."""
    n = len(tokens)
    return {
        "conversation_id": _repeated(row.conversation_id, n, pa.string()),
        "branch": _repeated(row.branch, n, pa.int32()),
        "position": pa.array(np.arange(n, dtype=np.int32)),
        "token_id": pa.array(tokens.token_ids, pa.int32()),
        "message_index": pa.array(tokens.message_indices, pa.int32()),
        "role": _by_message([message.role for message in tokens.messages], tokens.message_indices),
        "source": pa.array(tokens.sources, pa.string()).take(pa.array(tokens.source_codes)),
        "is_content": pa.array(tokens.is_content),
        "is_sampled": _nullable_bool(tokens.sampled_mask),
        "position_in_message": pa.array(positions_in_message(tokens)),
    }


def _span_table(row: ConversationRow, tokens: RenderedTokens) -> pa.Table:
    starts = run_starts(tokens.message_indices, tokens.source_codes, tokens.is_content, tokens.sampled_mask)
    stops = np.append(starts[1:], len(tokens)) if len(starts) else starts
    owners = tokens.message_indices[starts]
    n = len(starts)
    columns = [
        _repeated(row.conversation_id, n, pa.string()),
        _repeated(row.branch, n, pa.int32()),
        pa.array(owners, pa.int32()),
        _by_message([message.role for message in tokens.messages], owners),
        _by_message([message.tool_name for message in tokens.messages], owners),
        pa.array(tokens.sources, pa.string()).take(pa.array(tokens.source_codes[starts])),
        pa.array(tokens.is_content[starts]),
        _nullable_bool(tokens.sampled_mask[starts]),
        pa.array(starts, pa.int32()),
        pa.array(stops, pa.int32()),
    ]
    return pa.table(columns, schema=SPANS)


def _message_table(row: ConversationRow, tokens: RenderedTokens) -> tuple[pa.Table, _Totals]:
    counts = message_counts(tokens)
    n = len(tokens.messages)
    known = [message.unknown_reason is None for message in tokens.messages]
    unknown = ~np.array(known, bool) | (counts.n_sampled < 0)
    absent = counts.n_tokens == 0
    columns = [
        _repeated(row.conversation_id, n, pa.string()),
        _repeated(row.branch, n, pa.int32()),
        pa.array(np.arange(n, dtype=np.int32)),
        pa.array([message.role for message in tokens.messages], pa.string()),
        pa.array([message.tool_name for message in tokens.messages], pa.string()),
        pa.array(counts.start, pa.int32(), mask=absent),
        pa.array(counts.stop, pa.int32(), mask=absent),
        pa.array(counts.n_tokens, pa.int32()),
        pa.array(counts.n_sampled, pa.int32(), mask=unknown),
        pa.array(counts.n_content, pa.int32()),
        pa.array([message.n_dropped_characters for message in tokens.messages], pa.int32()),
        pa.array([list(message.flags) for message in tokens.messages], pa.list_(pa.string())),
        pa.array([message.unknown_reason for message in tokens.messages], pa.string()),
    ]
    n_sampled = None if bool(unknown.any()) else int((tokens.sampled_mask == 1).sum())
    return pa.table(columns, schema=MESSAGES), _Totals(n_sampled, int(tokens.is_content.sum()))


def _conversation_table(
    row: ConversationRow, tokens: RenderedTokens, totals: _Totals, part: int, first_row: int
) -> pa.Table:
    record = {
        "conversation_id": row.conversation_id,
        "branch": row.branch,
        "source_file": row.source_file,
        "source_line": row.source_line,
        "n_messages": len(tokens.messages),
        "n_tokens": len(tokens),
        "n_sampled": totals.n_sampled,
        "n_content": totals.n_content,
        "n_no_message": int((tokens.message_indices == NO_MESSAGE).sum()),
        "part": part,
        "first_row": first_row,
        "status": row.status,
        "metadata": row.metadata,
    }
    return pa.Table.from_pylist([record], schema=CONVERSATIONS)
