"""Small score datasets, made from whole distributions so that every number has an exact value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tokscore.dataset.manifest import Manifest, ModelIdentity, Part, TokenizerIdentity
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import (
    ConversationRow,
    FailedConversation,
    MessageFacts,
    RenderedConversation,
    RenderedTokens,
)
from tokscore.dataset.writing import PartWriter

FloatArray = NDArray[np.float64]
VOCAB_SIZE = 50


class Scored(NamedTuple):
    """A conversation: BOS, then messages of the given roles and lengths, with a distribution per position.

    Every message opens with `n_header` tokens of the template, which its length does not count.
    """

    conversation_id: str
    messages: tuple[tuple[str, int], ...]
    token_ids: NDArray[np.int32]
    logprobs: FloatArray  # [tokens, vocab]
    n_header: int = 0
    metadata: str | None = None
    sampled: int = 1  # of the assistant's tokens; -1 where it cannot be told
    branch: int = 0


MakeConversation = Callable[..., Scored]
WriteDataset = Callable[..., Path]


@pytest.fixture
def conversation() -> MakeConversation:
    """A conversation whose tokens come from `seed` and whose distributions come from `model`."""

    def make(
        conversation_id: str,
        messages: Sequence[tuple[str, int]] = (("user", 3), ("assistant", 4)),
        *,
        seed: int = 0,
        model: int = 0,
        vocab_size: int = VOCAB_SIZE,
        n_header: int = 0,
    ) -> Scored:
        n_tokens = 1 + sum(length for _, length in messages)
        token_ids = np.random.default_rng([seed, n_tokens]).integers(0, VOCAB_SIZE, n_tokens)
        logits = np.random.default_rng([seed, n_tokens, 7]).normal(0, 3, (n_tokens, vocab_size))
        if model:
            logits += np.random.default_rng([seed, model]).normal(0, 0.7, logits.shape)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        starts = np.cumsum([1, *(length for _, length in messages)])[:-1].repeat(n_header)
        return Scored(
            conversation_id,
            tuple(messages),
            np.insert(token_ids, starts, VOCAB_SIZE - 1).astype(np.int32),
            np.insert(logprobs, starts, -np.log(vocab_size), axis=0),
            n_header,
        )

    return make


@pytest.fixture
def write_dataset(tmp_path: Path) -> WriteDataset:
    """Writes a dataset; keyword arguments name what its manifest says otherwise."""
    written = 0

    def write(
        conversations: Sequence[Scored],
        *,
        n_parts: int = 1,
        top_k: int = 5,
        kind: DatasetKind = DatasetKind.SCORES,
        n_failed: int = 0,
        tokenizer: dict[str, object] | None = None,
        model: dict[str, object] | None = None,
        settings: dict[str, object] | None = None,
        columns: Callable[[dict[str, pa.Array]], dict[str, pa.Array]] = lambda scores: scores,
    ) -> Path:
        nonlocal written
        score_columns = _joined if kind is DatasetKind.SCORES else None
        root = tmp_path / f"dataset{written}"
        written += 1
        parts = [Part(index, 0, index, index + 1, 1) for index in range(n_parts)]
        manifest = _manifest(parts, top_k, kind, tokenizer or {}, model or {}, settings or {})
        root.mkdir()
        (root / "manifest.json").write_bytes(manifest.to_json())
        for part in parts:
            with PartWriter(root, manifest, part.index, score_columns) as writer:
                for line, scored in enumerate(conversations[part.index :: n_parts], 1):
                    name = scored.conversation_id
                    row = ConversationRow(
                        name, scored.branch, "conversations.jsonl", line, metadata=scored.metadata
                    )
                    scores = None
                    if kind is DatasetKind.SCORES:
                        scores = columns(_score_columns(scored, top_k))
                    writer.add(RenderedConversation(row, _tokens(scored)), scores)
                for line in range(n_failed):
                    writer.fail(FailedConversation("", "conversations.jsonl", line, "$", "empty"))
                writer.finish()
        return root

    return write


def _manifest(
    parts: list[Part],
    top_k: int,
    kind: DatasetKind,
    tokenizer: dict[str, object],
    model: dict[str, object],
    settings: dict[str, object],
) -> Manifest:
    identity = {"name": "tok", "revision": None, "sha256": "t" * 64, "template_sha256": "c" * 64}
    scorer = {"name": "m", "revision": None, "sha256": None, "vocab_size": VOCAB_SIZE, "dtype": "float32"}
    scorer |= {"engine": "transformers", "engine_version": "5"}
    return Manifest(
        kind=kind,
        tokscore_version="0",
        settings=msgspec.convert({"top_k": top_k, "temperature": 1.0, **settings}, dict[str, float | str]),
        tokenizer=msgspec.convert({**identity, "vocab_size": VOCAB_SIZE, **tokenizer}, TokenizerIdentity),
        model=msgspec.convert({**scorer, **model}, ModelIdentity) if kind is DatasetKind.SCORES else None,
        inputs=[],
        parts=parts,
    ).sealed()


def _tokens(scored: Scored) -> RenderedTokens:
    lengths = [scored.n_header + length for _, length in scored.messages]
    indices = np.concatenate([[-1], np.repeat(np.arange(len(lengths)), lengths)]).astype(np.int32)
    is_header = np.concatenate([[False], *(np.arange(length) < scored.n_header for length in lengths)])
    is_message = (indices >= 0) & ~is_header
    is_assistant = np.array([index >= 0 and scored.messages[index][0] == "assistant" for index in indices])
    return RenderedTokens(
        token_ids=scored.token_ids,
        message_indices=indices,
        sampled_mask=(is_assistant * scored.sampled).astype(np.int8),
        is_content=is_message,
        source_codes=is_message.astype(np.int16),
        sources=("template", "content"),
        messages=tuple(MessageFacts(role) for role, _ in scored.messages),
    )


def _joined(columns: Sequence[dict[str, pa.Array]]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array([each[name] for each in columns]) for name in columns[0]}


def _score_columns(scored: Scored, top_k: int) -> dict[str, pa.Array]:
    logprobs = scored.logprobs
    n = len(logprobs)
    realised = logprobs[np.arange(n), scored.token_ids]
    first = np.arange(n) == 0
    top_ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :top_k]
    top_logprobs = np.take_along_axis(logprobs, top_ids, axis=1)

    def lists(values: NDArray[np.generic], dtype: pa.DataType) -> pa.Array:
        return pa.array([None if first[row] else values[row].tolist() for row in range(n)], pa.list_(dtype))

    return {
        "logprob": pa.array(realised.astype(np.float32), mask=first),
        "rank": pa.array((logprobs >= realised[:, None]).sum(axis=1).astype(np.int32), mask=first),
        "entropy": pa.array((-np.exp(logprobs) * logprobs).sum(axis=1).astype(np.float32), mask=first),
        "top_ids": lists(top_ids.astype(np.int32), pa.int32()),
        "top_logprobs": lists(top_logprobs.astype(np.float32), pa.float32()),
        "at_ids": pa.nulls(n, pa.list_(pa.int32())),
        "at_logprobs": pa.nulls(n, pa.list_(pa.float32())),
        "recorded_logprob": pa.nulls(n, pa.float32()),
    }
