"""Small score datasets with a vocabulary, made from whole distributions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokscore.dataset.manifest import Manifest, ModelIdentity, Part, TokenizerIdentity
from tokscore.dataset.resuming import write_vocabulary
from tokscore.dataset.schema import VOCABULARY, DatasetKind
from tokscore.dataset.tokens import ConversationRow, MessageFacts, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter
from tokscore.scoring.columns import ScoredTokens, score_columns
from tokscore.scoring.engines.contract import SequenceScores

TEXTS: tuple[bytes, ...] = (
    b"<s>",
    b"Hello",
    b" world",
    b"\n",
    b"\ta",
    b"</script><img src=x onerror=\"document.title='executed'\">",
    "שלום".encode(),
    "مرحبا \u202e".encode(),
    "👩\u200d👩\u200d👧".encode(),
    b"\xe4\xbd",
    b"\xa0",
    b"x" * 10_000,
    "你好".encode(),
    b"&amp;<b>bold</b><!--",
    b"\x1b[31m",
    b" the",
    *(f" w{i}".encode() for i in range(34)),
)


class Sample(NamedTuple):
    """A conversation: BOS, then messages as (role, token ids); plain tuples do as well."""

    conversation_id: str
    messages: tuple[tuple[str, tuple[int, ...]], ...]
    branch: int = 0


def write_scores(
    root: Path,
    samples: Sequence[tuple[Any, ...]],
    *,
    texts: Sequence[bytes] = TEXTS,
    noise: float = 0.0,
    seed: int = 1,
    top_k: int = 5,
    model: str = "teacher",
) -> Path:
    """Write a score dataset; `noise` is how far its logits are from those of another with the same samples."""
    manifest = Manifest(
        kind=DatasetKind.SCORES,
        tokscore_version="0",
        settings={"top_k": top_k, "temperature": 1.0},
        tokenizer=TokenizerIdentity("tok", None, "t" * 64, "c" * 64, len(texts)),
        model=ModelIdentity(model, "r1", None, len(texts), "float32", "transformers", "transformers 5"),
        inputs=[],
        parts=[Part(0, 0, 0, 1, 1)],
    ).sealed()
    root.mkdir(parents=True)
    (root / "manifest.json").write_bytes(manifest.to_json())
    write_vocabulary(root, _vocabulary(texts))
    with PartWriter(root, manifest, 0, score_columns) as writer:
        for line, sample in enumerate(starmap(Sample, samples), 1):
            row = ConversationRow(sample.conversation_id, sample.branch, "convs.jsonl", line)
            tokens = _tokens(sample)
            scores = _scores(tokens.token_ids, len(texts), noise, seed, top_k)
            writer.add(RenderedConversation(row, tokens), ScoredTokens(len(tokens), scores))
        writer.finish()
    return root


def _vocabulary(texts: Sequence[bytes]) -> pa.Table:
    columns = [list(range(len(texts))), [text.decode(errors="replace") for text in texts], list(texts)]
    return pa.table(columns, schema=VOCABULARY)


def _tokens(sample: Sample) -> RenderedTokens:
    lengths = [len(ids) for _, ids in sample.messages]
    token_ids = [0, *(token_id for _, ids in sample.messages for token_id in ids)]
    indices = np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths)]).astype(np.int32)
    is_assistant = np.array([role == "assistant" for role, _ in sample.messages])
    return RenderedTokens(
        token_ids=np.array(token_ids, np.int32),
        message_indices=indices,
        sampled_mask=((indices >= 0) & is_assistant[indices]).astype(np.int8),
        is_content=indices >= 0,
        source_codes=(indices >= 0).astype(np.int16),
        sources=("template", "content"),
        messages=tuple(MessageFacts(role) for role, _ in sample.messages),
    )


def _scores(token_ids: np.ndarray, vocab_size: int, noise: float, seed: int, top_k: int) -> SequenceScores:
    n = len(token_ids)
    logits = np.random.default_rng([n, 5]).normal(0, 2, (n, vocab_size))
    logits += noise * np.random.default_rng([n, seed]).normal(0, 1, logits.shape)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    logprobs = logprobs[1:]
    realised = logprobs[np.arange(n - 1), token_ids[1:]]
    top_ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :top_k]
    return SequenceScores(
        logprobs=realised.astype(np.float32),
        ranks=(logprobs >= realised[:, None]).sum(axis=1).astype(np.int32),
        top_ids=top_ids.astype(np.int32),
        top_logprobs=np.take_along_axis(logprobs, top_ids, axis=1).astype(np.float32),
        entropy=-(np.exp(logprobs) * logprobs).sum(axis=1).astype(np.float32),
    )
