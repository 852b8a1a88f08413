from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokscore.dataset.manifest import InputFile, Part, Setting, TokenizerIdentity
from tokscore.dataset.schema import VOCABULARY
from tokscore.dataset.tokens import (
    ConversationRow,
    FailedConversation,
    MessageFacts,
    RenderedConversation,
    RenderedTokens,
)
from tokscore.scoring import Engine, SequenceScores, TokenSequence, plan_engine

VOCAB_SIZE = 128
MAX_LENGTH = 1_024


def random_ids(seed: int, n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, n).astype(np.int32)


def scores_of(engine: object, sequences: Iterable[np.ndarray]) -> list[SequenceScores]:
    keyed = [TokenSequence(key, ids) for key, ids in enumerate(sequences)]
    found = dict(engine.score(keyed))
    assert sorted(found) == list(range(len(keyed)))
    return [found[key] for key in range(len(keyed))]


class EngineStarter:
    """Starts engines and keeps the last one, since two vLLM engines cannot share a process."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._engine: Engine | None = None

    def __call__(self, name: str, model: Path, *, top_k: int = 5, **options: object) -> Engine:
        key = (name, model, top_k, sorted((key, str(value)) for key, value in options.items()))
        if self._engine is None or key != self._key:
            self.close()
            spec = plan_engine(str(model), engine=name, top_k=top_k, **options)  # type: ignore[arg-type]
            self._engine, self._key = spec.start(), key
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None


class MemorySource:
    """A token source of sequences; a string stands for a record that failed with that reason."""

    def __init__(self, parts: Sequence[Sequence[Sequence[int] | str]]) -> None:
        self._records = [list(part) for part in parts]
        self.inputs = [InputFile("memory.jsonl", 0, "0" * 64)]
        first_lines = np.cumsum([1, *(len(part) for part in parts)])
        self.parts = [
            Part(index, 0, index, index + 1, int(line))
            for index, line in zip(range(len(parts)), first_lines[:-1], strict=True)
        ]
        self.n_conversations = sum(map(len, parts))
        self.text_ids = None
        self.tokenizer_details = None
        self.tokenizer = TokenizerIdentity("tiny", None, "1" * 64, "2" * 64, VOCAB_SIZE)
        self.settings: dict[str, Setting] = {"add_generation_prompt": False}
        self.before_record: Callable[[int], None] = lambda line: None

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        for line, record in enumerate(self._records[part.index], part.first_line):
            self.before_record(line)
            if isinstance(record, str):
                yield FailedConversation(f"memory:{line}", "memory.jsonl", line, "$", record)
            else:
                yield conversation(line, record)

    def vocabulary(self) -> pa.Table:
        ids = range(VOCAB_SIZE)
        return pa.table([list(ids), [str(i) for i in ids], [None] * VOCAB_SIZE], schema=VOCABULARY)


def conversation(line: int, token_ids: Sequence[int]) -> RenderedConversation:
    n = len(token_ids)
    tokens = RenderedTokens(
        token_ids=np.array(token_ids, np.int32),
        message_indices=np.zeros(n, np.int32),
        sampled_mask=np.zeros(n, np.int8),
        is_content=np.ones(n, np.bool_),
        source_codes=np.zeros(n, np.int16),
        sources=("content",),
        messages=(MessageFacts("user"),),
    )
    return RenderedConversation(ConversationRow(f"memory:{line}", 0, "memory.jsonl", line), tokens)
