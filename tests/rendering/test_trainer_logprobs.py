"""The logprobs of a trainer stay with their tokens wherever recorded ones do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tokscore.dataset.tokens import MessageFacts, RenderedTokens
from tokscore.rendering.conversations.branch_tree import merged
from tokscore.rendering.conversations.trace import joined_logprobs
from tokscore.rendering.incremental.media import expand_placeholders
from tokscore.rendering.incremental.packing import joined
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.reading.formats.tokens import FORMAT, tokens_record

LOGPROBS = np.array([np.nan, np.nan, -0.5, -0.25], np.float32)
TOKENS = RenderedTokens(
    token_ids=np.array([1, 7, 3, 2], np.int32),
    message_indices=np.array([0, 0, 1, 1], np.int32),
    sampled_mask=np.array([0, 0, 1, 1], np.int8),
    is_content=np.ones(4, bool),
    source_codes=np.zeros(4, np.int16),
    sources=("content",),
    messages=(MessageFacts("user"), MessageFacts("assistant")),
    trainer_logprobs=LOGPROBS,
)


def test_a_record_of_tokens_holds_them_and_merging_keeps_them() -> None:
    record = json.loads(json.dumps(tokens_record("c", [TOKENS, TOKENS])))
    trace = merged(FORMAT.parse(record, Place(Path("c.jsonl"), 1)))
    for path in trace.branches:
        nodes = [trace.nodes[i].tokens for i in path]
        tokens = [each for each in nodes if each is not None]
        found = joined_logprobs(
            [each.trainer_logprobs for each in tokens], [len(t.token_ids) for t in tokens]
        )
        np.testing.assert_array_equal(found, LOGPROBS)


def test_packing_and_media_move_them_with_their_tokens() -> None:
    plain = RenderedTokens(
        **{name: getattr(TOKENS, name) for name in ("token_ids", "message_indices", "sampled_mask")},
        is_content=TOKENS.is_content,
        source_codes=TOKENS.source_codes,
        sources=TOKENS.sources,
        messages=TOKENS.messages,
    )
    both = joined([plain, TOKENS]).trainer_logprobs
    np.testing.assert_array_equal(both, [*[np.nan] * 4, *LOGPROBS])
    assert joined([plain, plain]).trainer_logprobs is None
    grown = expand_placeholders(TOKENS, 7, [3])
    np.testing.assert_array_equal(grown.trainer_logprobs, [*[np.nan] * 4, -0.5, -0.25])
    np.testing.assert_array_equal(TOKENS[2:].trainer_logprobs, [-0.5, -0.25])
