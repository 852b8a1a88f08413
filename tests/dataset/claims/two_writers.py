"""A process that writes part after part when told to: `two_writers.py ROOT LOGPROB`, then a line a part.

It prints whether the part is its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.files import location
from tokscore.dataset.manifest import Manifest, Part, TokenizerIdentity
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.table_files import TableFile
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


def check_one_wins(root: Path, n_parts: int) -> list[int]:
    """Have two processes write the same parts, each part at once; returns whose files are in place."""
    winners: list[int] = []
    writers = [
        subprocess.Popen(
            [sys.executable, __file__, str(root), token_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for token_id in ("1", "2")
    ]
    for index in range(n_parts):
        for writer in writers[:: 1 if index % 2 else -1]:
            assert writer.stdin is not None
            writer.stdin.write(f"{index}\n")
        answers = [
            writer.stdout.readline().strip() == "True" for writer in writers if writer.stdout is not None
        ]
        assert sorted(answers) == [False, True]
        # Whose checksums are those of all tables.
        Dataset.of_part(root, MANIFEST, MANIFEST.parts[index])
        with TableFile(root / "tokens" / part_name(index), "tokens") as file:
            winner = 1 + answers.index(True)
            assert file.read()["token_id"].to_pylist() == [winner] * 3 * winner
        with TableFile(root / "conversations" / part_name(index), "conversations") as file:
            assert file.footer.n_rows == winner
        winners.append(winner)
    for writer in writers:
        writer.communicate()
    return winners


if __name__ == "__main__":
    for line in sys.stdin:
        print(write(location(sys.argv[1]), int(line), int(sys.argv[2])), flush=True)
