"""Arrow schemas of every table in a dataset directory, one constant each."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

SCHEMA_VERSION = 2
ROW_GROUP_ROWS = 131_072


class DatasetKind(StrEnum):
    """Kind of a dataset, and the name of the folder with a row for each token."""

    TOKENS = "tokens"
    SCORES = "scores"


def _field(
    name: str, dtype: pa.DataType, description: str, *, unit: str = "", nullable: bool = False
) -> pa.Field:
    """A column that carries its description, and its unit if it has one, into the file."""
    metadata = {"description": description} | ({"unit": unit} if unit else {})
    return pa.field(name, dtype, nullable=nullable, metadata=metadata)


# Columns that mean the same in several tables.
_CONVERSATION_ID = _field("conversation_id", pa.string(), "The record's id, otherwise basename:line.")
_BRANCH = _field("branch", pa.int32(), "Branch of the record, from 0; 0 without branches.")
_MESSAGE_INDEX = _field(
    "message_index", pa.int32(), "Message in the conversation, from 0; -1: of no message."
)
_ROLE = _field("role", pa.string(), "Role of that message; null at -1.", nullable=True)
_TOOL_NAME = _field(
    "tool_name", pa.string(), "Tool that a message with a tool's result names; null without.", nullable=True
)
_SOURCE = _field(
    "source",
    pa.string(),
    "Field that the text comes from (content, reasoning_content, tool_calls, role, tools, ...), template, or "
    "recorded.",
)
_IS_CONTENT = _field("is_content", pa.bool_(), "Some character came from a message body, not the template.")
_IS_SAMPLED = _field(
    "is_sampled", pa.bool_(), "A model generated it; null where it cannot be told.", nullable=True
)

# One row per token of a rendered conversation.
TOKENS = pa.schema(
    [
        _CONVERSATION_ID,
        _BRANCH,
        _field("position", pa.int32(), "Index of the token in its sequence, from 0.", unit="tokens"),
        _field("token_id", pa.int32(), "Id in the vocabulary."),
        _MESSAGE_INDEX,
        _ROLE,
        _SOURCE,
        _IS_CONTENT,
        _IS_SAMPLED,
        _field(
            "position_in_message",
            pa.int32(),
            "Index among the tokens of its message, or among those of no message.",
            unit="tokens",
        ),
        _field(
            "recorded_is_content",
            pa.bool_(),
            "is_content as the input said; null where it did not.",
            nullable=True,
        ),
        _field(
            "recorded_logprob",
            pa.float32(),
            "Logprob as the input said; null where it did not.",
            unit="nats",
            nullable=True,
        ),
    ]
)

# The token columns, and what a model says about each token.
SCORES = pa.schema(
    [
        *TOKENS,
        _field(
            "logprob",
            pa.float32(),
            "ln p(token | all tokens before it); null at position 0 and where --score leaves it out.",
            unit="nats",
            nullable=True,
        ),
        _field(
            "rank",
            pa.int32(),
            "Number of ids with a logit at least as high: 1 is most likely, ties count; null with logprob.",
            nullable=True,
        ),
        _field(
            "entropy",
            pa.float32(),
            "Entropy of the whole distribution; null with logprob, and where the engine does not give it.",
            unit="nats",
            nullable=True,
        ),
        _field(
            "top_ids",
            pa.list_(pa.int32()),
            "The k most likely ids, most likely first; null with logprob.",
            nullable=True,
        ),
        _field(
            "top_logprobs",
            pa.list_(pa.float32()),
            "Their logprobs, in the same order.",
            unit="nats",
            nullable=True,
        ),
    ]
)

# One row per contiguous run of tokens with one owner.
SPANS = pa.schema(
    [
        _CONVERSATION_ID,
        _BRANCH,
        _MESSAGE_INDEX,
        _ROLE,
        _TOOL_NAME,
        _SOURCE,
        _IS_CONTENT,
        _IS_SAMPLED,
        _field("start", pa.int32(), "Position of its first token.", unit="tokens"),
        _field("stop", pa.int32(), "Position behind its last token.", unit="tokens"),
    ]
)

# One row per message of a conversation.
MESSAGES = pa.schema(
    [
        _CONVERSATION_ID,
        _BRANCH,
        _field("message_index", pa.int32(), "Message in the conversation, from 0."),
        _field("role", pa.string(), "Its role, as the record says."),
        _TOOL_NAME,
        _field(
            "start",
            pa.int32(),
            "Position of its first token; null without tokens. Others' tokens may lie before stop.",
            unit="tokens",
            nullable=True,
        ),
        _field(
            "stop", pa.int32(), "Position behind its last token; null without.", unit="tokens", nullable=True
        ),
        _field("n_tokens", pa.int32(), "Its tokens.", unit="tokens"),
        _field(
            "n_sampled",
            pa.int32(),
            "Those that a model generated; null where it cannot be told.",
            unit="tokens",
            nullable=True,
        ),
        _field("n_content", pa.int32(), "Those with text of its body.", unit="tokens"),
        _field(
            "n_dropped_characters",
            pa.int32(),
            "Characters of its body that the template left out.",
            unit="characters",
        ),
        _field(
            "n_control_tokens",
            pa.int32(),
            "Special ids such as <|im_start|> that came from its content.",
            unit="tokens",
        ),
        _field("flags", pa.list_(pa.string()), "What is unusual about it, as attribution.md lists."),
        _field("unknown_reason", pa.string(), "Why is_sampled is null; null where it is not.", nullable=True),
    ]
)

# One row per conversation or branch.
CONVERSATIONS = pa.schema(
    [
        _CONVERSATION_ID,
        _BRANCH,
        _field("source_file", pa.string(), "Base name of the input."),
        _field("source_line", pa.int64(), "Line of the record, from 1; in arrays and Parquet its number."),
        _field("n_messages", pa.int32(), "Its messages.", unit="messages"),
        _field("n_tokens", pa.int32(), "Its tokens.", unit="tokens"),
        _field(
            "n_sampled",
            pa.int32(),
            "Those that a model generated; null where some message is unknown.",
            unit="tokens",
            nullable=True,
        ),
        _field("n_content", pa.int32(), "Those with text of a message body.", unit="tokens"),
        _field("n_no_message", pa.int32(), "Those of no message.", unit="tokens"),
        _field("part", pa.int32(), "Part that holds its tokens."),
        _field("first_row", pa.int64(), "Row of its first token in that part, from 0.", unit="rows"),
        _field(
            "status",
            pa.string(),
            "ok, or what was done to it, with commas: truncated_left, truncated_right, rendered_text, "
            "empty_tools_left_out, "
            "unaligned, media, untracked_text, recorded_ids_unused, recorded_logprobs_unused, "
            "recorded_is_content_unused.",
        ),
        _field("metadata", pa.string(), "The record's metadata as JSON; null without.", nullable=True),
    ]
)

# One row per id of the vocabulary.
VOCABULARY = pa.schema(
    [
        _field("token_id", pa.int32(), "Id in the vocabulary."),
        _field("text", pa.string(), "Its text, decoded alone; bytes that are no UTF-8 show as U+FFFD."),
        _field("bytes", pa.binary(), "Its bytes; null where the tokenizer does not tell.", nullable=True),
    ]
)

TOKEN_TABLES = {DatasetKind.TOKENS: TOKENS, DatasetKind.SCORES: SCORES}
