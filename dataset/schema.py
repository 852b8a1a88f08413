"""The columns of every table in a dataset directory, and the Arrow schemas made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

SCHEMA_VERSION = 2
ROW_GROUP_ROWS = 131_072


class DatasetKind(StrEnum):
    """Kind of a dataset, and the name of the folder with a row for each token."""

    TOKENS = "tokens"
    SCORES = "scores"


# The other tables of a part, in the order in which they are written.
SMALL_TABLES = ("spans", "messages", "conversations")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, which drives how it is written, read, checked and documented.

    Attributes:
        name: In the file.
        dtype: In the file.
        description: A sentence or two, which the file carries.
        unit: Likewise; empty without one.
        nullable: Whether it may be null.
        least: Smallest value that it, or an element of its lists, may have.
        attribute: Array of `RenderedTokens` (of `SequenceScores` for a score) that it is made of and that is
            read back from it; empty for what `rows` makes of the place of a token.
        is_split: Written with BYTE_STREAM_SPLIT.
        is_added: Came later: files of this version that lack it read as if it were null.
    """

    name: str
    dtype: pa.DataType
    description: str
    unit: str = ""
    nullable: bool = False
    least: int | None = None
    attribute: str = ""
    is_split: bool = False
    is_added: bool = False

    @property
    def field(self) -> pa.Field:
        """For a schema: a field that carries description and unit into the file."""
        metadata = {"description": self.description} | ({"unit": self.unit} if self.unit else {})
        return pa.field(self.name, self.dtype, nullable=self.nullable, metadata=metadata)


# Columns that mean the same in several tables.
_CONVERSATION_ID = Column("conversation_id", pa.string(), "The record's id, otherwise basename:line.")
_BRANCH = Column("branch", pa.int32(), "Branch of the record, from 0; 0 without branches.", least=0)
_MESSAGE_INDEX = Column(
    "message_index",
    pa.int32(),
    "Message in the conversation, from 0; -1: of no message.",
    least=-1,
    attribute="message_indices",
)
_ROLE = Column("role", pa.string(), "Role of that message; null at -1.", nullable=True)
_TOOL_NAME = Column(
    "tool_name", pa.string(), "Tool that a message with a tool's result names; null without.", nullable=True
)
_SOURCE = Column(
    "source",
    pa.string(),
    "Field that the text comes from (content, reasoning_content, tool_calls, role, tools, ...), template, "
    "recorded, or text and context of plain text.",
    attribute="source_codes",
)
_IS_CONTENT = Column(
    "is_content",
    pa.bool_(),
    "Some character came from a message body, not the template; of plain text, it counts.",
    attribute="is_content",
)
_IS_SAMPLED = Column(
    "is_sampled",
    pa.bool_(),
    "A model generated it; null where it cannot be told.",
    nullable=True,
    attribute="sampled_mask",
)

# One row per token of a rendered conversation.
_TOKENS = (
    _CONVERSATION_ID,
    _BRANCH,
    Column("position", pa.int32(), "Index of the token in its sequence, from 0.", unit="tokens", least=0),
    Column("token_id", pa.int32(), "Id in the vocabulary.", least=0, attribute="token_ids"),
    _MESSAGE_INDEX,
    _ROLE,
    _SOURCE,
    _IS_CONTENT,
    _IS_SAMPLED,
    Column(
        "position_in_message",
        pa.int32(),
        "Index among the tokens of its message, or among those of no message.",
        unit="tokens",
        least=0,
    ),
    Column(
        "recorded_is_content",
        pa.bool_(),
        "is_content as the input said; null where it did not.",
        nullable=True,
        attribute="recorded_is_content",
    ),
    Column(
        "recorded_logprob",
        pa.float32(),
        "Logprob as the input said; null where it did not.",
        unit="nats",
        nullable=True,
        attribute="recorded_logprobs",
        is_split=True,
    ),
    Column(
        "trainer_logprob",
        pa.float32(),
        "Logprob that a trainer computed later, as the input said; null where it did not.",
        unit="nats",
        nullable=True,
        attribute="trainer_logprobs",
        is_split=True,
        is_added=True,
    ),
)

# What a model says about each token; the score table has the token columns before them.
SCORE_COLUMNS = (
    Column(
        "logprob",
        pa.float32(),
        "ln p(token | all tokens before it); null at position 0 and where `score` leaves it out.",
        unit="nats",
        nullable=True,
        attribute="logprobs",
        is_split=True,
    ),
    Column(
        "rank",
        pa.int32(),
        "Number of ids with a logit at least as high: 1 is most likely, ties count; null with logprob.",
        nullable=True,
        least=1,
        attribute="ranks",
    ),
    Column(
        "entropy",
        pa.float32(),
        "Entropy of the whole distribution; null with logprob, and where the engine does not give it.",
        unit="nats",
        nullable=True,
        attribute="entropy",
        is_split=True,
    ),
    Column(
        "top_ids",
        pa.list_(pa.int32()),
        "The k most likely ids, most likely first; null with logprob.",
        nullable=True,
        least=0,
        attribute="top_ids",
        is_split=True,
    ),
    Column(
        "top_logprobs",
        pa.list_(pa.float32()),
        "Their logprobs, in the same order.",
        unit="nats",
        nullable=True,
        attribute="top_logprobs",
        is_split=True,
    ),
    Column(
        "at_ids",
        pa.list_(pa.int32()),
        "The ids that the dataset given with `at` lists there; null with logprob, and without `at`.",
        nullable=True,
        least=0,
        attribute="at_ids",
        is_split=True,
        is_added=True,
    ),
    Column(
        "at_logprobs",
        pa.list_(pa.float32()),
        "Their logprobs, in the same order; -inf for ids that the model lacks.",
        unit="nats",
        nullable=True,
        attribute="at_logprobs",
        is_split=True,
        is_added=True,
    ),
)

# One row per contiguous run of tokens with one owner.
_SPANS = (
    _CONVERSATION_ID,
    _BRANCH,
    _MESSAGE_INDEX,
    _ROLE,
    _TOOL_NAME,
    _SOURCE,
    _IS_CONTENT,
    _IS_SAMPLED,
    Column("start", pa.int32(), "Position of its first token.", unit="tokens", least=0),
    Column("stop", pa.int32(), "Position behind its last token.", unit="tokens", least=0),
)

# One row per message of a conversation.
_MESSAGES = (
    _CONVERSATION_ID,
    _BRANCH,
    Column("message_index", pa.int32(), "Message in the conversation, from 0.", least=0),
    Column("role", pa.string(), "Its role, as the record says."),
    _TOOL_NAME,
    Column(
        "start",
        pa.int32(),
        "Position of its first token; null without tokens. Others' tokens may lie before stop.",
        unit="tokens",
        nullable=True,
        least=0,
    ),
    Column(
        "stop",
        pa.int32(),
        "Position behind its last token; null without.",
        unit="tokens",
        nullable=True,
        least=0,
    ),
    Column("n_tokens", pa.int32(), "Its tokens.", unit="tokens", least=0),
    Column(
        "n_sampled",
        pa.int32(),
        "Those that a model generated; null where it cannot be told.",
        unit="tokens",
        nullable=True,
        least=0,
    ),
    Column("n_content", pa.int32(), "Those with text of its body.", unit="tokens", least=0),
    Column(
        "n_dropped_characters",
        pa.int32(),
        "Characters of its body that the template left out.",
        unit="characters",
        least=0,
    ),
    Column(
        "n_control_tokens",
        pa.int32(),
        "Special ids such as <|im_start|> that came from its content.",
        unit="tokens",
        least=0,
    ),
    Column("flags", pa.list_(pa.string()), "What is unusual about it, as attribution.md lists."),
    Column("unknown_reason", pa.string(), "Why is_sampled is null; null where it is not.", nullable=True),
)

# One row per conversation or branch.
_CONVERSATIONS = (
    _CONVERSATION_ID,
    _BRANCH,
    Column("source_file", pa.string(), "Base name of the input."),
    Column(
        "source_line", pa.int64(), "Line of the record, from 1; in arrays and Parquet its number.", least=0
    ),
    Column("n_messages", pa.int32(), "Its messages.", unit="messages", least=0),
    Column("n_tokens", pa.int32(), "Its tokens.", unit="tokens", least=0),
    Column(
        "n_sampled",
        pa.int32(),
        "Those that a model generated; null where that of some cannot be told.",
        unit="tokens",
        nullable=True,
        least=0,
    ),
    Column("n_content", pa.int32(), "Those with text of a message body.", unit="tokens", least=0),
    Column("n_no_message", pa.int32(), "Those of no message.", unit="tokens", least=0),
    Column("part", pa.int32(), "Part that holds its tokens.", least=0),
    Column("first_row", pa.int64(), "Row of its first token in that part, from 0.", unit="rows", least=0),
    Column(
        "status",
        pa.string(),
        "ok, or what was done to it, with commas: truncated_left, truncated_right, rendered_text, "
        "empty_tools_left_out, "
        "unaligned, media, untracked_text, recorded_ids_unused, recorded_logprobs_unused, "
        "recorded_is_content_unused, tail_left_out, system_not_recorded, redacted_reasoning, tools_differ, "
        "subagents_left_out.",
    ),
    Column("metadata", pa.string(), "The record's metadata as JSON; null without.", nullable=True),
)

# One row per id of the vocabulary.
_VOCABULARY = (
    Column("token_id", pa.int32(), "Id in the vocabulary.", least=0),
    Column("text", pa.string(), "Its text, decoded alone; bytes that are no UTF-8 show as U+FFFD."),
    Column("bytes", pa.binary(), "Its bytes; null where the tokenizer does not tell.", nullable=True),
)

# The columns of every table by its name, that of its folder.
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "tokens": _TOKENS,
    "scores": (*_TOKENS, *SCORE_COLUMNS),
    "spans": _SPANS,
    "messages": _MESSAGES,
    "conversations": _CONVERSATIONS,
    "vocabulary": _VOCABULARY,
}
SCHEMAS: Mapping[str, pa.Schema] = {
    name: pa.schema([column.field for column in columns]) for name, columns in COLUMNS.items()
}
TOKENS, SCORES = SCHEMAS["tokens"], SCHEMAS["scores"]
SPANS, MESSAGES, CONVERSATIONS = SCHEMAS["spans"], SCHEMAS["messages"], SCHEMAS["conversations"]
VOCABULARY = SCHEMAS["vocabulary"]
