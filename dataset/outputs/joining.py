"""Neighbouring parts joined to larger ones, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import Manifest, Part
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import COLUMNS, SCHEMAS, SMALL_TABLES
from tokscore.dataset.table_files import TableFile
from tokscore.dataset.writing import PartWriter

_DETAILS_KEY = b"tokscore.engine_details"


def neighbours(manifest: Manifest, owners: dict[int, Path], part_bytes: int) -> Iterator[list[Part]]:
    """Neighbouring parts of one input whose token tables have so many bytes together."""
    group: list[Part] = []
    size, details = 0, b""
    for part in manifest.parts:
        path = owners[part.index] / manifest.kind.value / part_name(part.index)
        with TableFile(path, manifest.kind) as file:
            own = (file.metadata.metadata or {}).get(_DETAILS_KEY, b"")
        # What says how a part was scored is said of whole files.
        if group and (size >= part_bytes or part.file != group[0].file or own != details):
            yield group
            group, size = [], 0
        group.append(part)
        size, details = size + path.stat().st_size, own
    if group:
        yield group


def joined_plan(manifest: Manifest, groups: Sequence[Sequence[Part]]) -> Manifest:
    """The plan with one part for each group of neighbouring parts."""
    parts = [
        Part(
            index,
            group[0].file,
            group[0].start,
            group[-1].stop,
            group[0].first_line,
            {line: name for part in group for line, name in part.renamed.items()},
        )
        for index, group in enumerate(groups)
    ]
    return msgspec.structs.replace(manifest, parts=parts, earlier_plans=msgspec.UNSET).sealed()


def join(
    owners: dict[int, Path],
    manifest: Manifest,
    group: Sequence[Part],
    target: Path,
    joined: Manifest,
    index: int,
) -> int:
    """Write one part with the rows of several; returns its rows.

    Args:
        owners: The outputs that have the parts, by index.
        manifest: Of these outputs.
        group: The parts.
        target: Where to.
        joined: The plan that is written.
        index: Of the part there.
    """
    kind, first_row, details = manifest.kind.value, 0, b""
    opened = [Dataset.of_part(owners[part.index], manifest, part) for part in group]
    with opened[0].open_part(kind, group[0].index) as file:
        details = (file.metadata.metadata or {}).get(_DETAILS_KEY, b"")
    described = joined
    if details:
        described = msgspec.structs.replace(joined, engine_details=msgspec.json.decode(details))
    with PartWriter(target, described, index) as writer:
        for part, dataset in zip(group, opened, strict=True):
            for table in (*SMALL_TABLES, kind):
                for rows in dataset.batches(table):
                    rows = rows.select(SCHEMAS[table].names)
                    writer.append(table, _moved(rows, index, first_row) if table == "conversations" else rows)
            first_row += dataset.n_rows(kind)
            for failure in dataset.failures(part.index):
                writer.fail(failure)
        writer.finish()
    return first_row


def _moved(conversations: pa.Table, part: int, first_row: int) -> pa.Table:
    """Conversations whose tokens begin in another part, so many rows later."""
    changed = {
        "part": np.full(len(conversations), part),
        "first_row": conversations["first_row"].to_numpy() + first_row,
    }
    for column in COLUMNS["conversations"]:
        if column.name in changed:
            at = conversations.column_names.index(column.name)
            values = pa.array(changed[column.name], column.dtype)
            conversations = conversations.set_column(at, column.name, values)
    return conversations
