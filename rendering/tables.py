"""Arrow schemas of every table in a dataset directory, one constant each."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

SCHEMA_VERSION = 2
ROW_GROUP_ROWS = 131_072


class DatasetKind(StrEnum):
    """What a dataset holds a row for each token of; also the name of that folder."""

    TOKENS = "tokens"
    SCORES = "scores"


def _field(name: str, dtype: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, dtype, nullable=nullable)


# One row per token of a rendered conversation.
TOKENS = pa.schema(
    [
        _field("conversation_id", pa.string()),  # the record's id, otherwise basename:line
        _field("branch", pa.int32()),  # 0 for a conversation without branches
        _field("position", pa.int32()),  # index of the token in its sequence
        _field("token_id", pa.int32()),
        _field("message_index", pa.int32()),  # -1: the token belongs to no message
        _field("role", pa.string(), nullable=True),  # role of that message; null at -1
        _field("source", pa.string()),  # root of the field path, "template", or "recorded"
        _field("is_content", pa.bool_()),  # some character came from a message body
        _field("is_sampled", pa.bool_(), nullable=True),  # a model generated it; null: cannot be told
        _field("position_in_message", pa.int32()),  # index among the tokens of its message (or of -1)
        _field("recorded_is_content", pa.bool_(), nullable=True),  # as the input said; null where it did not
        _field("recorded_logprob", pa.float32(), nullable=True),  # nats, as the input said; null without one
    ]
)

# The token columns, and what a model says about each token.
SCORES = pa.schema(
    [
        *TOKENS,
        _field("logprob", pa.float32(), nullable=True),  # ln p(token | tokens before it); null at position 0
        _field("rank", pa.int32(), nullable=True),  # ids with a logit at least as high; 1 = most likely
        _field("entropy", pa.float32(), nullable=True),  # nats; null where the engine does not give it
        _field("top_ids", pa.list_(pa.int32()), nullable=True),  # the k most likely ids, in descending order
        _field("top_logprobs", pa.list_(pa.float32()), nullable=True),  # their logprobs
    ]
)

# One row per contiguous run of tokens with one owner.
SPANS = pa.schema(
    [
        _field("conversation_id", pa.string()),
        _field("branch", pa.int32()),
        _field("message_index", pa.int32()),
        _field("role", pa.string(), nullable=True),
        _field("tool_name", pa.string(), nullable=True),
        _field("source", pa.string()),
        _field("is_content", pa.bool_()),
        _field("is_sampled", pa.bool_(), nullable=True),
        _field("start", pa.int32()),  # token positions, half-open
        _field("stop", pa.int32()),
    ]
)

# One row per message of a conversation.
MESSAGES = pa.schema(
    [
        _field("conversation_id", pa.string()),
        _field("branch", pa.int32()),
        _field("message_index", pa.int32()),
        _field("role", pa.string()),
        _field("tool_name", pa.string(), nullable=True),
        _field("start", pa.int32(), nullable=True),  # outer span, half-open; null without tokens
        _field("stop", pa.int32(), nullable=True),
        _field("n_tokens", pa.int32()),
        _field("n_sampled", pa.int32(), nullable=True),  # null: cannot be told
        _field("n_content", pa.int32()),
        _field("n_dropped_characters", pa.int32()),  # body characters that the template left out
        _field("n_control_tokens", pa.int32()),  # ids such as <|im_start|> that came from its content
        _field("flags", pa.list_(pa.string())),  # control_tokens_in_content, no_stop_rendered, …
        _field("unknown_reason", pa.string(), nullable=True),  # why is_sampled is null
    ]
)

# One row per conversation or branch.
CONVERSATIONS = pa.schema(
    [
        _field("conversation_id", pa.string()),
        _field("branch", pa.int32()),
        _field("source_file", pa.string()),  # base name of the input
        _field("source_line", pa.int64()),  # 1-based
        _field("n_messages", pa.int32()),
        _field("n_tokens", pa.int32()),
        _field("n_sampled", pa.int32(), nullable=True),  # null: unknown for some message
        _field("n_content", pa.int32()),
        _field("n_no_message", pa.int32()),  # tokens of no message
        _field("part", pa.int32()),
        _field("first_row", pa.int64()),  # row of its first token in that part
        _field("status", pa.string()),  # "ok", or what was done to it
        _field("metadata", pa.string(), nullable=True),  # the record's metadata, as JSON
    ]
)

# One row per id of the vocabulary.
VOCABULARY = pa.schema(
    [
        _field("token_id", pa.int32()),
        _field("text", pa.string()),  # decoded alone; bytes that are no UTF-8 show as U+FFFD
        _field("bytes", pa.binary(), nullable=True),  # null where the tokenizer does not tell
    ]
)

TOKEN_TABLES = {DatasetKind.TOKENS: TOKENS, DatasetKind.SCORES: SCORES}
