"""Every row of a finished part, held against the rest of the part and the plan."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.dataset.errors import InputError
from tokscore.dataset.schema import SMALL_TABLES, DatasetKind
from tokscore.dataset.table_files import TOKEN_IDS_KEY, TableFile
from tokscore.dataset.token_rows import conversation_name, row_faults
from tokscore.dataset.tokens import NO_MESSAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Manifest
    from tokscore.dataset.reading import Dataset


def check_rows(dataset: Dataset, plan: Manifest, index: int) -> set[tuple[str, int]]:
    """Read all of a part that was opened.

    Args:
        dataset: With that part.
        plan: With all parts.
        index: Of the part.

    Returns:
        Its conversations and branches.

    Raises:
        InputError: A page is damaged, a footer says what its rows do not have, rows are not those of their
            conversation, or conversations are not those of the plan's lines.
    """
    for table in SMALL_TABLES:
        with dataset.open_part(table, index) as file:
            for group, rows in enumerate(file.batches()):
                check_statistics(file, group, rows)
    with dataset.open_part("conversations", index) as file:
        conversations = file.read()
    _check_lines(dataset, plan, index, conversations)
    _check_tokens(dataset, index, conversations)
    _check_spans(dataset, index, conversations)
    for _ in dataset.stored(index):  # which holds messages against conversations
        pass
    for _ in dataset.failures(index):
        pass
    ids = conversations["conversation_id"].to_pylist()
    return {*zip(ids, conversations["branch"].to_pylist(), strict=True)}


def check_statistics(file: TableFile, group: int, rows: pa.Table) -> None:
    """Refuse a row group whose footer says another least or largest value or number of nulls than it has.

    Args:
        file: The table.
        group: Index of the row group.
        rows: All of it.

    Raises:
        InputError: With the column.
    """
    found = file.metadata.row_group(group)
    for at in range(found.num_columns):
        column = found.column(at)
        said, name = column.statistics, column.path_in_schema
        if said is None or name not in rows.column_names:
            continue
        values = rows[name]
        if said.has_null_count and said.null_count != values.null_count:
            raise InputError(
                f"{file.path} has {values.null_count} nulls in column {name}; its footer says "
                f"{said.null_count}."
            )
        is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if not (is_number and said.has_min_max):
            continue
        least, largest = (pc.min_max(values)[end].as_py() for end in ("min", "max"))
        if (least, largest) != (said.min, said.max):
            raise InputError(
                f"{file.path} has {least} to {largest} in column {name}; its footer says {said.min} to "
                f"{said.max}."
            )


def _check_lines(dataset: Dataset, plan: Manifest, index: int, conversations: pa.Table) -> None:
    """Refuse conversations of lines that the plan gives to another part, and lines out of order."""
    parts, inputs = plan.parts, plan.inputs
    part = parts[index]
    if not inputs[part.file].size_bytes:  # a dataset, of which a part has lines anywhere
        return
    behind = parts[index + 1] if index + 1 < len(parts) else None
    stop = behind.first_line if behind is not None and behind.file == part.file else None
    path, before = dataset.path("conversations", index), (part.first_line, -1)
    rows = zip(
        conversations["source_file"].to_pylist(),
        conversations["source_line"].to_pylist(),
        conversations["branch"].to_pylist(),
        strict=True,
    )
    for row, (name, line, branch) in enumerate(rows):
        if name != inputs[part.file].name:
            raise InputError(
                f"{path} has source_file {name} in row {row}; expected {inputs[part.file].name}, the input "
                "of its part."
            )
        if line < part.first_line or (stop is not None and line >= stop):
            limit = f"{part.first_line} to {stop - 1}" if stop is not None else f"{part.first_line} on"
            raise InputError(
                f"{path} has source_line {line} in row {row}; its part has the lines from {limit}."
            )
        if (line, branch) <= before:
            raise InputError(f"{path} has line {line}, branch {branch} in row {row} twice or out of order.")
        before = line, branch


def _check_tokens(dataset: Dataset, index: int, conversations: pa.Table) -> None:
    kind = dataset.manifest.kind
    path = dataset.path(kind.value, index)
    lengths = conversations["n_tokens"].to_numpy()
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    n_messages = conversations["n_messages"].to_numpy().astype(np.int64)
    vocab_size = dataset.manifest.tokenizer.vocab_size
    counts = {name: np.zeros(len(lengths), np.int64) for name in ("n_content", "n_no_message")}
    digest, first = sha256(), 0
    with dataset.open_part(kind.value, index) as file:
        said = (file.metadata.metadata or {}).get(TOKEN_IDS_KEY.encode())
        for group, rows in enumerate(file.batches()):
            check_statistics(file, group, rows)
            at = np.arange(first, first + len(rows))
            owner = np.searchsorted(starts, at, side="right") - 1
            positions = at - starts[owner]
            for name in ("conversation_id", "branch"):
                wanted = conversations[name].take(pa.array(owner))
                equal = pc.equal(rows[name].cast(wanted.type), wanted)
                if not pc.all(equal).as_py() and len(rows):
                    row = first + int(np.flatnonzero(~equal.to_numpy(zero_copy_only=False))[0])
                    raise InputError(f"{path} has another {name} than its conversation in row {row}.")
            for row, fault in row_faults(rows, positions, n_messages[owner]):
                name = conversation_name(
                    conversations["conversation_id"][int(owner[row])].as_py(),
                    conversations["branch"][int(owner[row])].as_py(),
                )
                raise InputError(f"{path}: {name}, row {first + row}: {fault}")
            token_ids = rows["token_id"].to_numpy()
            largest = int(token_ids.max(initial=-1))
            if largest >= vocab_size:
                raise InputError(f"{path} has token id {largest}; its vocabulary has {vocab_size} ids.")
            digest.update(token_ids.astype("<i4").tobytes())
            for name, counted in (
                ("n_content", rows["is_content"].to_numpy()),
                ("n_no_message", rows["message_index"].to_numpy() == NO_MESSAGE),
            ):
                counts[name] += np.bincount(owner[counted], minlength=len(lengths))
            if kind is DatasetKind.SCORES:
                _check_scores(str(path), first, rows)
            first += len(rows)
    if said is not None and said.decode() != digest.hexdigest():
        raise InputError(f"{path} has other token ids than were written: their hash is another.")
    for name, found in counts.items():
        _check_counts(f"{dataset.path('conversations', index)}", name, conversations, found)


def _check_counts(path: str, name: str, conversations: pa.Table, found: NDArray[np.int64]) -> None:
    for row in np.flatnonzero(conversations[name].to_numpy() != found)[:1].tolist():
        raise InputError(
            f"{path} has {name} {conversations[name][row].as_py()} in row {row}; its tokens have "
            f"{found[row]}."
        )


def _check_scores(path: str, first: int, rows: pa.Table) -> None:
    """Refuse scores that no distribution has."""
    logprob, rank = rows["logprob"], rows["rank"]
    # Rounding in float32.
    faults = {
        "a logprob above 0": pc.greater(logprob, 1e-3),
        "a rank without a logprob": pc.and_(pc.is_null(logprob), pc.is_valid(rank)),
        "a logprob without a rank": pc.and_(pc.is_valid(logprob), pc.is_null(rank)),
        "another number of ids than logprobs among the most likely": pc.not_equal(
            pc.list_value_length(rows["top_ids"]), pc.list_value_length(rows["top_logprobs"])
        ),
    }
    for what, wrong in faults.items():
        found = np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))
        if len(found):
            raise InputError(f"{path} has {what} in row {first + int(found[0])}.")


def _check_spans(dataset: Dataset, index: int, conversations: pa.Table) -> None:
    """Refuse spans that do not follow each other through all tokens of their conversation."""
    columns = ["conversation_id", "branch", "start", "stop"]
    with dataset.open_part("spans", index) as file:
        spans = file.read(columns)
    for name, stop in _span_ends(spans, conversations):
        raise InputError(
            f"{dataset.path('spans', index)}: {name}: the spans do not cover its tokens once: they break at "
            f"token {stop}."
        )


def _span_ends(spans: pa.Table, conversations: pa.Table) -> Iterator[tuple[str, int]]:
    """Conversations whose spans break, with the token where they do."""
    starts, stops = (spans[name].to_numpy() for name in ("start", "stop"))
    firsts = np.append(np.flatnonzero(starts == 0), len(starts)).tolist()
    wanted = conversations.filter(pc.greater(conversations["n_tokens"], 0))
    rows = wanted.select(["conversation_id", "branch", "n_tokens"]).to_pylist()
    if firsts[0] or len(firsts) - 1 != len(rows):
        yield "all conversations", 0
        return
    own = spans.select(["conversation_id", "branch"]).take(pa.array(firsts[:-1], pa.int64())).to_pylist()
    for (first, last), row, said in zip(pairwise(firsts), rows, own, strict=True):
        name = conversation_name(row["conversation_id"], row["branch"])
        breaks = np.flatnonzero(starts[first + 1 : last] != stops[first : last - 1])
        if len(breaks):
            yield name, int(stops[first + breaks[0]])
        elif stops[last - 1] != row["n_tokens"]:
            yield name, int(stops[last - 1])
        elif said != {key: row[key] for key in said}:
            yield name, 0
