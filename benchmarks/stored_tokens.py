"""A token dataset of given ids, for benchmarks of scoring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import InputFile, Part, Setting, TokenizerIdentity
    from tokscore.dataset.tokens import FailedConversation, RenderedConversation

SEQUENCES_A_PART = 4_096


class StoredTokens:
    """A token dataset of one-message conversations: written here, read as a run reads it."""

    def __init__(self, root: Path, sequences: list[NDArray[np.int32]]) -> None:
        from tokscore.dataset.manifest import InputFile, Manifest, Part, TokenizerIdentity
        from tokscore.dataset.reading import Dataset
        from tokscore.dataset.resuming import prepare_output
        from tokscore.dataset.schema import DatasetKind
        from tokscore.dataset.tokens import (
            ConversationRow,
            MessageFacts,
            RenderedConversation,
            RenderedTokens,
        )
        from tokscore.dataset.writing import PartWriter

        starts = range(0, len(sequences), SEQUENCES_A_PART)
        self.inputs: list[InputFile] = [InputFile("prompts.jsonl", 0, "0" * 64)]
        self.parts: list[Part] = [
            Part(index, 0, start, min(start + SEQUENCES_A_PART, len(sequences)), start + 1)
            for index, start in enumerate(starts)
        ]
        self.n_conversations = len(sequences)
        self.text_ids = None
        self.tokenizer_details = None
        self.tokenizer: TokenizerIdentity = TokenizerIdentity("random", None, "1" * 64, "2" * 64, 1)
        self.settings: dict[str, Setting] = {"add_generation_prompt": False}
        manifest = Manifest(
            kind=DatasetKind.TOKENS,
            tokscore_version="benchmark",
            settings=self.settings,
            tokenizer=self.tokenizer,
            model=None,
            inputs=self.inputs,
            parts=self.parts,
        ).sealed()
        prepare_output(root, manifest, self.vocabulary)
        for part in self.parts:
            with PartWriter(root, manifest, part.index) as writer:
                for line in range(part.start, part.stop):
                    n = len(sequences[line])
                    tokens = RenderedTokens(
                        token_ids=sequences[line],
                        message_indices=np.zeros(n, np.int32),
                        sampled_mask=np.zeros(n, np.int8),
                        is_content=np.ones(n, np.bool_),
                        source_codes=np.zeros(n, np.int16),
                        sources=("content",),
                        messages=(MessageFacts("user"),),
                    )
                    row = ConversationRow(f"prompts:{line + 1}", 0, "prompts.jsonl", line + 1)
                    writer.add(RenderedConversation(row, tokens))
                writer.finish()
        self._dataset = Dataset(root)

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """From Parquet."""
        yield from self._dataset.read_part(part.index)

    def vocabulary(self) -> pa.Table:
        """Of one id, since nothing here is text."""
        import pyarrow as pa

        from tokscore.dataset.schema import VOCABULARY

        return pa.table([[0], ["?"], [None]], schema=VOCABULARY)
