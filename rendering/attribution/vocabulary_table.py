"""The vocabulary table: text and bytes of every id."""

from __future__ import annotations

import pyarrow as pa

from tokscore.dataset.schema import VOCABULARY
from tokscore.rendering.attribution.tokenizer import ChatTokenizer


def vocabulary_table(tokenizer: ChatTokenizer) -> pa.Table:
    """All ids in order, schema `tables.VOCABULARY`."""
    entries = tokenizer.entries
    contents = [tokenizer.token_bytes.contents[i] for i in entries]
    text = [
        token if raw is None else raw.decode("utf-8", "replace")
        for token, raw in zip(entries.values(), contents, strict=True)
    ]
    return pa.table(
        [
            pa.array(list(entries), pa.int32()),
            pa.array(text, pa.string()),
            pa.array(contents, pa.binary()),
        ],
        schema=VOCABULARY,
    )
