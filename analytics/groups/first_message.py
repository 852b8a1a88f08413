"""The first message of some roles, for a note about them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tokscore.dataset.reading import Dataset


class MessagePlace(NamedTuple):
    """Where a message is.

    Attributes:
        source_file: Base name of the input.
        source_line: 1-based line of its record.
        message_index: Its place among the messages of the conversation, or of its branch.
    """

    source_file: str
    source_line: int
    message_index: int


def first_message(dataset: Dataset, roles: Collection[str]) -> MessagePlace:
    """The first message that has one of the roles.

    Raises:
        ValueError: There is none.
    """
    keys = ["conversation_id", "branch"]
    for batch in dataset.batches("messages", [*keys, "message_index", "role"]):
        found = batch.filter(pc.is_in(batch["role"], pa.array(roles, batch["role"].type)))
        if not len(found):
            continue
        first = found.slice(0, 1).to_pylist()[0]
        for places in dataset.batches("conversations", [*keys, "source_file", "source_line"]):
            is_it = pc.and_(*(pc.equal(places[key], first[key]) for key in keys))
            for place in places.filter(is_it).to_pylist():
                return MessagePlace(place["source_file"], place["source_line"], first["message_index"])
    raise ValueError(f"no message has a role of {sorted(roles)}")
