"""Rows of every table, made of rendered conversations, and tokens made of rows that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokscore.dataset.schema import COLUMNS, CONVERSATIONS, MESSAGES, SPANS, TOKENS, Column
from tokscore.dataset.tokens import (
    NO_MESSAGE,
    ConversationRow,
    RenderedConversation,
    RenderedTokens,
    run_starts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.tokens import MessageFacts

# Arrays that few conversations have.
_OPTIONAL = frozenset(field.name for field in fields(RenderedTokens) if field.default is None)


class _Joined(NamedTuple):
    """The tokens of some conversations in one row of arrays.

    Attributes:
        conversations: What they are joined from.
        messages: Of all conversations.
        first_rows: int64, shape [conversations], first token of each, and the number of all tokens.
        conversation: int64, shape [tokens], index of the conversation.
        message: int64, shape [tokens], index into `messages`, -1 for tokens of no message.
        owner: int64, shape [tokens], a number for each message and for the other tokens of each conversation.
        message_indices: int32, shape [tokens], as in the conversation.
        sources: Field path roots that occur.
        source_codes: int64, shape [tokens], indices into `sources`.
        is_content: bool, shape [tokens].
        sampled_mask: int8, shape [tokens].
    """

    conversations: Sequence[RenderedConversation]
    messages: Sequence[MessageFacts]
    first_rows: NDArray[np.int64]
    conversation: NDArray[np.int64]
    message: NDArray[np.int64]
    owner: NDArray[np.int64]
    message_indices: NDArray[np.int32]
    sources: Sequence[str]
    source_codes: NDArray[np.int64]
    is_content: NDArray[np.bool_]
    sampled_mask: NDArray[np.int8]


def _join(conversations: Sequence[RenderedConversation]) -> _Joined:
    tokens = [conversation.tokens for conversation in conversations]
    n_tokens = np.array([len(each) for each in tokens])
    n_messages = np.array([len(each.messages) for each in tokens])
    conversation = np.repeat(np.arange(len(tokens)), n_tokens)
    message_indices = np.concatenate([each.message_indices for each in tokens])
    message = message_indices + (np.cumsum(n_messages) - n_messages)[conversation]
    codes: dict[str, int] = {}
    source_codes = [
        np.array([codes.setdefault(source, len(codes)) for source in each.sources])[each.source_codes]
        for each in tokens
    ]
    return _Joined(
        conversations=conversations,
        messages=[facts for each in tokens for facts in each.messages],
        first_rows=np.append(0, np.cumsum(n_tokens)),
        conversation=conversation,
        message=np.where(message_indices == NO_MESSAGE, NO_MESSAGE, message),
        owner=message + conversation + 1,
        message_indices=message_indices,
        sources=list(codes),
        source_codes=np.concatenate(source_codes),
        is_content=np.concatenate([each.is_content for each in tokens]),
        sampled_mask=np.concatenate([each.sampled_mask for each in tokens]),
    )


def _nullable_bool(mask: NDArray[np.int8]) -> pa.Array:
    return pa.array(mask == 1, mask=mask == -1)


def _taken(values: Sequence[str | None], indices: NDArray[np.int64]) -> pa.Array:
    """A value for each index, null at -1."""
    return pa.array(values, pa.string()).take(pa.array(indices, mask=indices < 0))


def _ids(joined: _Joined, conversation: NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """The columns conversation_id and branch."""
    rows = [each.row for each in joined.conversations]
    branches = np.array([row.branch for row in rows], np.int32)
    return _taken([row.conversation_id for row in rows], conversation), pa.array(branches[conversation])


def _position_in_owner(owner: NDArray[np.int64]) -> NDArray[np.int32]:
    """Index of each token among the tokens of its owner."""
    order = np.argsort(owner, kind="stable")
    starts = run_starts(owner[order])
    lengths = np.diff(np.append(starts, len(order)))
    positions = np.empty(len(order), np.int32)
    positions[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return positions


def _token_columns(joined: _Joined) -> dict[str, pa.Array]:
    """The columns of `schema.TOKENS`, conversation after conversation."""
    conversation_id, branch = _ids(joined, joined.conversation)
    position = np.arange(joined.first_rows[-1]) - joined.first_rows[joined.conversation]
    placed = {
        "conversation_id": conversation_id,
        "branch": branch,
        "position": pa.array(position.astype(np.int32)),
        "role": _taken([facts.role for facts in joined.messages], joined.message),
        "source": _taken(joined.sources, joined.source_codes),
        "position_in_message": pa.array(_position_in_owner(joined.owner)),
    }
    return {
        column.name: placed[column.name] if column.name in placed else _written(column, joined)
        for column in COLUMNS["tokens"]
    }


def _written(column: Column, joined: _Joined) -> pa.Array:
    """The array that the column is named after; NaN and what is not there become null."""
    arrays = [getattr(each.tokens, column.attribute) for each in joined.conversations]
    if all(array is None for array in arrays):
        return pa.nulls(int(joined.first_rows[-1]), column.dtype)
    if column.attribute not in _OPTIONAL:
        whole = np.concatenate(arrays)
        is_mask = pa.types.is_boolean(column.dtype) and whole.dtype == np.int8
        return _nullable_bool(whole) if is_mask else pa.array(whole, column.dtype)
    lengths = np.diff(joined.first_rows).tolist()
    return pa.concat_arrays(
        [
            pa.nulls(n, column.dtype) if array is None else pa.array(array, column.dtype, from_pandas=True)
            for array, n in zip(arrays, lengths, strict=True)
        ]
    )


def token_columns(conversations: Sequence[RenderedConversation]) -> dict[str, pa.Array]:
    """The columns of `schema.TOKENS`, conversation after conversation."""
    return _token_columns(_join(conversations))


def token_table(tokens: RenderedTokens, conversation_id: str | None = None, *, branch: int = 0) -> pa.Table:
    """One row per token, schema `schema.TOKENS`; positions count from the first of these tokens.

    Args:
        tokens: Of one conversation.
        conversation_id: Fills that column; without it the table lacks conversation_id and branch.
        branch: 0 for a conversation without branches.
    """
    row = ConversationRow(conversation_id or "", branch, source_file="", source_line=0)
    table = pa.table(token_columns([RenderedConversation(row, tokens)]), schema=TOKENS)
    return table if conversation_id is not None else table.drop_columns(["conversation_id", "branch"])


def _span_table(joined: _Joined) -> pa.Table:
    starts = run_starts(joined.owner, joined.source_codes, joined.is_content, joined.sampled_mask)
    conversation = joined.conversation[starts]
    first_rows = joined.first_rows[conversation]
    stops = np.append(starts[1:], joined.first_rows[-1])[: len(starts)]
    message = joined.message[starts]
    columns = [
        *_ids(joined, conversation),
        pa.array(joined.message_indices[starts], pa.int32()),
        _taken([facts.role for facts in joined.messages], message),
        _taken([facts.tool_name for facts in joined.messages], message),
        _taken(joined.sources, joined.source_codes[starts]),
        pa.array(joined.is_content[starts]),
        _nullable_bool(joined.sampled_mask[starts]),
        pa.array((starts - first_rows).astype(np.int32)),
        pa.array((stops - first_rows).astype(np.int32)),
    ]
    return pa.table(columns, schema=SPANS)


class _Counts(NamedTuple):
    """Per message of all conversations, each of shape [messages]."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    n_tokens: NDArray[np.int64]
    n_sampled: NDArray[np.int64]
    n_content: NDArray[np.int64]
    is_unknown: NDArray[np.bool_]


def _count(joined: _Joined) -> _Counts:
    owned = np.flatnonzero(joined.message != NO_MESSAGE)
    message, n = joined.message[owned], len(joined.messages)
    position = owned - joined.first_rows[joined.conversation[owned]]

    def count(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(message[flags[owned]], minlength=n)

    start, stop = np.zeros(n, np.int64), np.zeros(n, np.int64)
    start[message[::-1]] = position[::-1]
    stop[message] = position + 1
    given = np.array([facts.unknown_reason is not None for facts in joined.messages], bool)
    return _Counts(
        start=start,
        stop=stop,
        n_tokens=np.bincount(message, minlength=n),
        n_sampled=count(joined.sampled_mask == 1),
        n_content=count(joined.is_content),
        is_unknown=given | (count(joined.sampled_mask == -1) > 0),
    )


def _message_table(joined: _Joined, counts: _Counts) -> pa.Table:
    n_messages = [len(each.tokens.messages) for each in joined.conversations]
    conversation = np.repeat(np.arange(len(n_messages)), n_messages)
    index = [i for n in n_messages for i in range(n)]
    messages = joined.messages
    absent = counts.n_tokens == 0
    columns = [
        *_ids(joined, conversation),
        pa.array(index, pa.int32()),
        pa.array([facts.role for facts in messages], pa.string()),
        pa.array([facts.tool_name for facts in messages], pa.string()),
        pa.array(counts.start, pa.int32(), mask=absent),
        pa.array(counts.stop, pa.int32(), mask=absent),
        pa.array(counts.n_tokens, pa.int32()),
        pa.array(counts.n_sampled, pa.int32(), mask=counts.is_unknown),
        pa.array(counts.n_content, pa.int32()),
        pa.array([facts.n_dropped_characters for facts in messages], pa.int32()),
        pa.array([facts.n_control_tokens for facts in messages], pa.int32()),
        pa.array([list(facts.flags) for facts in messages], pa.list_(pa.string())),
        pa.array([facts.unknown_reason for facts in messages], pa.string()),
    ]
    return pa.table(columns, schema=MESSAGES)


def _conversation_table(joined: _Joined, counts: _Counts, part: int, first_row: int) -> pa.Table:
    n = len(joined.conversations)

    def per_conversation(flags: NDArray[np.bool_]) -> list[int]:
        return np.bincount(joined.conversation[flags], minlength=n).tolist()  # type: ignore[no-any-return]

    n_sampled = per_conversation(joined.sampled_mask == 1)
    n_content = per_conversation(joined.is_content)
    n_no_message = per_conversation(joined.message == NO_MESSAGE)
    n_unknown = per_conversation(joined.sampled_mask == -1)
    records: list[dict[str, Any]] = []  # Any: columns of several types
    first_message = 0
    for i, (row, tokens) in enumerate(joined.conversations):
        stop_message = first_message + len(tokens.messages)
        is_unknown = bool(n_unknown[i] or counts.is_unknown[first_message:stop_message].any())
        first_message = stop_message
        records.append(
            {
                **row._asdict(),
                "n_messages": len(tokens.messages),
                "n_tokens": len(tokens),
                "n_sampled": None if is_unknown else n_sampled[i],
                "n_content": n_content[i],
                "n_no_message": n_no_message[i],
                "part": part,
                "first_row": first_row + int(joined.first_rows[i]),
            }
        )
    return pa.Table.from_pylist(records, schema=CONVERSATIONS)


class Tables(NamedTuple):
    """Rows of every table of a dataset.

    Attributes:
        tokens: The columns of `tables.TOKENS`.
        spans: Schema `tables.SPANS`.
        messages: Schema `tables.MESSAGES`.
        conversations: Schema `tables.CONVERSATIONS`.
    """

    tokens: dict[str, pa.Array]
    spans: pa.Table
    messages: pa.Table
    conversations: pa.Table


def make_tables(conversations: Sequence[RenderedConversation], *, part: int, first_row: int) -> Tables:
    """The rows that some conversations add to the tables.

    Args:
        conversations: At least one.
        part: Index of the part they are written to.
        first_row: Rows that part has already.
    """
    joined = _join(conversations)
    counts = _count(joined)
    return Tables(
        _token_columns(joined),
        _span_table(joined),
        _message_table(joined, counts),
        _conversation_table(joined, counts, part, first_row),
    )


# What `stored_tokens` needs of a token table.
STORED_COLUMNS = tuple(column.name for column in COLUMNS["tokens"] if column.attribute)


def stored_tokens(table: pa.Table, messages: Sequence[MessageFacts]) -> RenderedTokens:
    """The tokens of one conversation.

    Args:
        table: Its rows, with `STORED_COLUMNS`.
        messages: What is known of its messages.
    """
    arrays: dict[str, Any] = {}  # Any: arrays of several types, and names
    for column in COLUMNS["tokens"]:
        if not column.attribute:
            continue
        stored = table[column.name]
        if column.name == "source":
            encoded = stored.cast(pa.string()).combine_chunks().dictionary_encode()
            arrays["sources"] = tuple(encoded.dictionary.to_pylist())
            arrays[column.attribute] = encoded.indices.to_numpy().astype(np.int16)
        elif column.attribute in _OPTIONAL:
            is_there = stored.null_count < len(stored)
            arrays[column.attribute] = stored.to_numpy() if is_there else None
        elif column.nullable:
            arrays[column.attribute] = stored.cast(pa.int8()).fill_null(-1).to_numpy()
        else:
            arrays[column.attribute] = stored.to_numpy()
    return RenderedTokens(**arrays, messages=tuple(messages))
