"""Every recorded id knows where it stands in its record, so that an error can name it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tokscore.rendering.reading.formats.format import Format
from tokscore.rendering.reading.formats.openai_batch import FORMAT as BATCH

from .message_records import batch
from .recorded_records import WITH_IDS, parse, records

RECORDS = [
    *((chosen, record) for name, chosen in WITH_IDS.items() for record in records(name)),
    (BATCH, batch("sum")),
]


def at(record: Any, path: str) -> Any:
    for step in re.findall(r"\w+", path):
        record = record[int(step) if isinstance(record, list) else step]
    return record


@pytest.mark.parametrize(("chosen", "record"), RECORDS)
def test_the_place_of_an_id_holds_it(chosen: Format, record: dict[str, Any]) -> None:
    for node in parse(chosen, record).nodes:
        for i, token_id in enumerate([] if node.tokens is None else node.tokens.token_ids.tolist()):
            assert node.tokens is not None
            place = node.tokens.place(i)
            assert place is not None
            assert at(record, f"{place.path}[{place.start}]") == token_id
            assert place.source == record.get("output", "")
