"""Dataset directories: made ready for their parts, and read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.manifest import MANIFEST_NAME, Manifest, Setting, read_manifest
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import (
    ConversationRow,
    FailedConversation,
    MessageFacts,
    RenderedConversation,
    RenderedTokens,
)
from tokscore.dataset.writing import is_temporary, part_name, remove_abandoned, write_file

PLAN_KEY = b"tokscore.plan_hash"
VOCABULARY_NAME = "vocab.parquet"


class _FailureFields(TypedDict):
    conversation_id: str
    source_file: str
    source_line: int
    path: str
    reason: str


def prepare_output(root: Path, manifest: Manifest, vocabulary: Callable[[], pa.Table]) -> set[int]:
    """Make `root` ready to take the parts of `manifest`.

    Args:
        root: New, empty, holding parts of the same plan, or of another plan without a finished part.
        manifest: Sealed.
        vocabulary: Makes `tables.VOCABULARY` rows, the same from every shard.

    Returns:
        Indices of the parts that are already done.

    Raises:
        UsageError: `root` holds something else; the message says what differs.
    """
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file; expected a directory for the output.")
    existing: Manifest | None = None
    # Another shard may be writing its manifest right now.
    if root.is_dir() and any(not is_temporary(path) for path in root.iterdir()):
        if not (root / MANIFEST_NAME).is_file():
            raise UsageError(
                f"{root} is not empty and holds no dataset of tokscore. Choose another directory with -o."
            )
        existing = read_manifest(root)
        started = any((root / existing.kind.value).glob("part-*.parquet"))
        if started and existing.plan_hash != manifest.plan_hash:
            raise UsageError(
                f"{root} holds another run: {'; '.join(manifest_differences(existing, manifest))}.\n"
                "Choose another directory with -o, or delete this one."
            )
    root.mkdir(parents=True, exist_ok=True)
    remove_abandoned(root)
    is_new = existing is None or existing.plan_hash != manifest.plan_hash
    if is_new:
        write_file(root / MANIFEST_NAME, manifest.to_json())
    if is_new or not (root / VOCABULARY_NAME).is_file():
        sink = pa.BufferOutputStream()
        pq.write_table(vocabulary(), sink, compression="zstd", compression_level=3)
        write_file(root / VOCABULARY_NAME, sink.getvalue().to_pybytes())
    return finished_parts(root, manifest)


def finished_parts(root: Path, manifest: Manifest) -> set[int]:
    """Indices of the parts that are there."""
    found = ((part.index, _part_footer(root, manifest.kind, part.index)) for part in manifest.parts)
    return {index for index, footer in found if footer is not None and footer.plan_hash}


def record_engine_details(
    root: Path, details: Mapping[str, Setting], *, but: Collection[str] = ()
) -> list[str]:
    """Write how the engine scores into the manifest, where no run has done so.

    Args:
        root: The dataset.
        details: By name.
        but: Names of those that differ by chance, which are no difference.

    Returns:
        In words, what differs from what an earlier run wrote, which stays.
    """
    manifest = read_manifest(root)
    earlier = manifest.engine_details
    if earlier is None:
        told = msgspec.structs.replace(manifest, engine_details=dict(details))
        write_file(root / MANIFEST_NAME, told.to_json())
        return []
    return [
        f"{name.replace('_', '-')} was {earlier.get(name)} and is {details.get(name)}"
        for name in sorted({*earlier, *details} - {*but})
        if earlier.get(name) != details.get(name)
    ]


def check_some_succeeded(root: Path, parts: Sequence[int], what: str) -> None:
    """Refuse finished parts in which every conversation failed.

    Args:
        root: The dataset; other parts may be missing.
        parts: Their indices.
        what: What was to be done with the conversations, for the message.

    Raises:
        InputError: With the first failure.
    """
    tables = (root / "conversations" / part_name(index) for index in parts)
    if any(pq.read_metadata(path).num_rows for path in tables):
        return
    failures = [failure for index in parts for failure in _read_failures(root, index)]
    if failures:
        first = failures[0].error()
        if len(failures) == 1:
            raise InputError(f"the only conversation could not be {what}: {first}")
        raise InputError(f"none of the {len(failures):,} conversations could be {what}. The first: {first}")


def _read_failures(root: Path, part: int) -> Iterator[FailedConversation]:
    for line in (root / "errors" / part_name(part, "jsonl")).read_bytes().splitlines():
        yield FailedConversation(**msgspec.json.decode(line, type=_FailureFields))


# For hashes, which say nothing to a reader.
_DIFFERENCES = {
    "sha256": "the tokenizer or the model's weights are others",
    "template_sha256": "the chat template is another (see `template`)",
}


def manifest_differences(existing: Manifest, wanted: Manifest) -> list[str]:
    """In words, what keeps two manifests from being the same plan."""
    if existing.kind is not wanted.kind:
        return [f"it has {existing.kind.value}, this run writes {wanted.kind.value}"]
    found: list[str] = []
    old, new = msgspec.to_builtins(existing), msgspec.to_builtins(wanted)
    for section in ("settings", "tokenizer", "model"):
        before, after = old[section] or {}, new[section] or {}
        found += [
            _DIFFERENCES.get(
                key, f"{key.replace('_', '-')} is {before.get(key)} there and {after.get(key)} here"
            )
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        ]
    if existing.inputs != wanted.inputs:
        names = ", ".join(file.name for file in wanted.inputs)
        found.append(f"it was made from other input than {names}, or that changed since")
    if existing.tokscore_version != wanted.tokscore_version:
        found.append(f"tokscore {existing.tokscore_version} wrote it, this is {wanted.tokscore_version}")
    return found or ["the input is divided into other parts"]


class Footer(NamedTuple):
    """The footer of a Parquet file.

    Attributes:
        plan_hash: Of the manifest it was written for; empty where a file says nothing.
        n_rows: Its rows.
    """

    plan_hash: str
    n_rows: int


def _footer(path: Path, then: str) -> Footer:
    """The footer of a file that is there; `then` ends the message where it is not whole."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} is no whole Parquet file ({error}). {then}") from error
    return Footer((metadata.metadata or {}).get(PLAN_KEY, b"").decode(), int(metadata.num_rows))


def _part_footer(root: Path, kind: DatasetKind, index: int) -> Footer | None:
    """Of a finished part; None where the part is not done."""
    path = root / kind.value / part_name(index)
    return _footer(path, "Delete it and run again.") if path.is_file() else None


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing, though its part is finished. Write the dataset again.")


class Dataset:
    """A finished dataset directory, for reading; what takes a path takes it too.

    Attributes:
        root: The directory.
        manifest: Its manifest.
    """

    def __init__(self, root: Path, *, kind: DatasetKind | None = None) -> None:
        """Open the dataset at `root` and check that all its parts are there.

        Raises:
            InputError: No dataset, of another kind than asked for, or parts are missing or foreign.
        """
        self.root = root
        self.manifest = read_manifest(root)
        if kind is not None and self.manifest.kind is not kind:
            raise InputError(
                f"{root} is a dataset of {self.manifest.kind.value}; expected {kind.value}"
                + (" (run tokscore logprobs on it first)." if kind is DatasetKind.SCORES else ".")
            )
        self._footers: dict[Path, Footer] = {}
        missing = []
        for part, path in zip(self.manifest.parts, self.files(self.manifest.kind.value), strict=True):
            footer = _part_footer(root, self.manifest.kind, part.index)
            if footer is None:
                missing.append(part.index)
                continue
            self._footers[path] = footer
            if footer.plan_hash != self.manifest.plan_hash:
                raise InputError(
                    f"{root}: {part_name(part.index)} belongs to another plan than the manifest."
                )
        if missing:
            raise InputError(
                f"{root} is not finished: {len(missing)} of {len(self.manifest.parts)} parts are missing, "
                f"the first is {part_name(missing[0])}.\n"
                "Run the command that writes it again; it goes on where it stopped."
            )

        for path in (path for table in ("spans", "messages", "conversations") for path in self.files(table)):
            _check_exists(path)
            self._footers[path] = _footer(path, "Write the dataset again.")
        for part in self.manifest.parts:
            _check_exists(root / "errors" / part_name(part.index, "jsonl"))

    def __fspath__(self) -> str:
        return str(self.root)

    def __repr__(self) -> str:
        return f"Dataset({str(self.root)!r}, {self.manifest.kind.value})"

    def n_conversations(self) -> int:
        """Rows of the conversations table."""
        return sum(self.footer(path).n_rows for path in self.files("conversations"))

    def footer(self, path: Path) -> Footer:
        """The footer of one of the `files`, as it was when the dataset was opened."""
        return self._footers[path]

    def check_some_succeeded(self, what: str) -> None:
        """Refuse a dataset in which every conversation failed.

        Args:
            what: What was to be done with them, for the message.

        Raises:
            InputError: With the first failure.
        """
        check_some_succeeded(self.root, [part.index for part in self.manifest.parts], what)

    def files(self, table: str) -> list[Path]:
        """Paths of all parts of one table, in plan order."""
        return [self.root / table / part_name(part.index) for part in self.manifest.parts]

    def failures(self, part: int | None = None) -> Iterator[FailedConversation]:
        """The error rows of one part, or of all in plan order."""
        indices = [part.index for part in self.manifest.parts] if part is None else [part]
        for index in indices:
            yield from _read_failures(self.root, index)

    def conversations(self) -> Iterator[RenderedConversation]:
        """All conversations with their tokens as arrays, in plan order, one held at a time."""
        for part in self.manifest.parts:
            yield from self.read_part(part.index)

    def read_part(self, index: int) -> Iterator[RenderedConversation]:
        """The conversations of one part with their tokens, by row groups."""
        conversations = pq.read_table(self.root / "conversations" / part_name(index)).to_pylist()
        messages = pq.read_table(self.root / "messages" / part_name(index))
        wanted = ["token_id", "message_index", "source", "is_content", "is_sampled"]
        wanted += ["recorded_logprob", "recorded_is_content"]
        rows = RowReader(self.root / self.manifest.kind.value / part_name(index), wanted)
        first_message = 0
        for record in conversations:
            facts = messages.slice(first_message, record["n_messages"])
            first_message += record["n_messages"]
            table = rows.take(record["n_tokens"])
            yield RenderedConversation(
                ConversationRow(
                    record["conversation_id"],
                    record["branch"],
                    record["source_file"],
                    record["source_line"],
                    record["status"],
                    record["metadata"],
                ),
                _tokens_from(table, facts),
            )


class RowReader:
    """Reads a Parquet file front to back in slices of any length, a row group at a time.

    Attributes:
        n_rows: Rows in the file.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._file = pq.ParquetFile(path, page_checksum_verification=True)
        self._columns = list(columns)
        self._next_group = 0
        self._buffer: pa.Table | None = None
        self.n_rows = self._file.metadata.num_rows

    def take(self, n: int) -> pa.Table:
        """The next `n` rows.

        Raises:
            InputError: The file ends before.
        """
        buffer = self._buffer
        while buffer is None or buffer.num_rows < n:
            if self._next_group >= self._file.num_row_groups:
                if buffer is None:
                    buffer = self._file.schema_arrow.empty_table().select(self._columns)
                if buffer.num_rows < n:
                    raise InputError(f"the token table ends {n - buffer.num_rows} rows early.")
                break
            group = self._file.read_row_group(self._next_group, columns=self._columns)
            self._next_group += 1
            buffer = group if buffer is None or not buffer.num_rows else pa.concat_tables([buffer, group])
        self._buffer = buffer.slice(n)
        return buffer.slice(0, n)


def _tokens_from(table: pa.Table, messages: pa.Table) -> RenderedTokens:
    sources = table["source"].combine_chunks().dictionary_encode()
    sampled = table["is_sampled"].combine_chunks().cast(pa.int8()).fill_null(-1)
    facts = [
        MessageFacts(
            record["role"],
            record["tool_name"],
            record["n_dropped_characters"],
            tuple(record["flags"]),
            record["unknown_reason"],
            record["n_control_tokens"],
        )
        for record in messages.to_pylist()
    ]
    return RenderedTokens(
        token_ids=table["token_id"].to_numpy(),
        message_indices=table["message_index"].to_numpy(),
        sampled_mask=sampled.to_numpy(),
        is_content=table["is_content"].combine_chunks().to_numpy(zero_copy_only=False),
        source_codes=sources.indices.to_numpy().astype(np.int16),
        sources=tuple(sources.dictionary.to_pylist()),
        messages=tuple(facts),
        recorded_logprobs=_recorded(table, "recorded_logprob"),
        recorded_is_content=_recorded(table, "recorded_is_content"),
    )


def _recorded(table: pa.Table, name: str) -> Any:  # Any: an array of the column's type, or None
    column = table[name].combine_chunks()
    return None if column.null_count == len(column) else column.to_numpy(zero_copy_only=False)
