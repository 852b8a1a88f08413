"""A process that writes part after part when told to: `two_writers.py ROOT LOGPROB`, then a line a part.

It prints whether the part is its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tokscore.dataset.files import location
from tokscore.dataset.manifest import Manifest, Part, TokenizerIdentity
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import ConversationRow, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter

N_PARTS = 50
MANIFEST = Manifest(
    kind=DatasetKind.TOKENS,
    tokscore_version="0",
    settings={},
    tokenizer=TokenizerIdentity("tokenizer", None, "t" * 64, "c" * 64, 9),
    model=None,
    inputs=[],
    parts=[Part(i, 0, i, i + 1, 1) for i in range(N_PARTS)],
).sealed()


def write(root: Path, part: int, token_id: int) -> bool:
    """One conversation, whose ids say who wrote it."""
    tokens = RenderedTokens(
        token_ids=np.full(3, token_id, np.int32),
        message_indices=np.full(3, -1, np.int32),
        sampled_mask=np.zeros(3, np.int8),
        is_content=np.zeros(3, bool),
        source_codes=np.zeros(3, np.int16),
        sources=("template",),
        messages=(),
    )
    with PartWriter(root, MANIFEST, part) as writer:
        # As many conversations as the id says, so that every table tells the writers apart.
        for i in range(token_id):
            writer.add(RenderedConversation(ConversationRow(f"c{i}", 0, "convs.jsonl", i + 1), tokens))
        return writer.finish()


if __name__ == "__main__":
    for line in sys.stdin:
        print(write(location(sys.argv[1]), int(line), int(sys.argv[2])), flush=True)
