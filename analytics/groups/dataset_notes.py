"""Counts of a finished dataset, from its small tables.

Every command that writes prints them, and polars takes longer to import than they take to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokscore.dataset.reading import Dataset
from tokscore.dataset.tokens import CHANGES, NO_MESSAGE, NOT_PRINTED
from tokscore.rendering.documents.windows import TAIL_LEFT_OUT_STATUS

NO_MESSAGE_LABEL = "(no message)"


class RoleCounts(NamedTuple):
    """Tokens of all messages of one role.

    Attributes:
        role: The role, or `(no message)` for tokens of the template alone.
        n_messages: Messages of that role, those without tokens included.
        n_tokens: Their tokens.
        mean_tokens: Tokens a message, None without messages.
        max_tokens: Longest message, None without messages.
        n_sampled: Generated tokens, of the messages where that can be told.
        n_unknown: Messages where it cannot.
        n_content: Tokens with some character of a message body.
        n_control_tokens: Control tokens that came from content.
    """

    role: str
    n_messages: int
    n_tokens: int
    mean_tokens: float | None
    max_tokens: int | None
    n_sampled: int
    n_unknown: int
    n_content: int
    n_control_tokens: int


class MessageCounts(NamedTuple):
    """Tokens of one message.

    Attributes:
        conversation_id: Its conversation.
        branch: Of the conversation, 0 for one without branches.
        message_index: Its place there.
        role: Its role.
        n_tokens: Its tokens.
        n_sampled: Generated tokens, None where that cannot be told.
        n_content: Tokens with some character of its body.
        n_dropped_characters: Characters of its body that the template left out.
        n_control_tokens: Control tokens that came from its content.
        flags: What else a reader should know.
    """

    conversation_id: str
    branch: int
    message_index: int
    role: str
    n_tokens: int
    n_sampled: int | None
    n_content: int
    n_dropped_characters: int
    n_control_tokens: int
    flags: tuple[str, ...]


_SUMS = ("n_tokens", "n_sampled", "n_content", "n_control_tokens")
_NONE_IS_0 = pc.ScalarAggregateOptions(min_count=0)


def role_counts(dataset: Dataset) -> list[RoleCounts]:
    """One entry per role in the order of first appearance, then tokens of no message."""
    total: pa.Table | None = None
    for batch in dataset.batches("messages", ["role", *_SUMS]):
        counts = batch.group_by("role", use_threads=False).aggregate(
            [
                *[(name, "sum", _NONE_IS_0) for name in _SUMS],
                ("n_tokens", "max"),
                ("n_tokens", "count", pc.CountOptions("all")),
                ("n_sampled", "count", pc.CountOptions("only_null")),
            ]
        )
        both = counts if total is None else pa.concat_tables([total, counts])
        sums = [name for name in both.column_names if name not in ("role", "n_tokens_max")]
        total = both.group_by("role", use_threads=False).aggregate(
            [*[(name, "sum") for name in sums], ("n_tokens_max", "max")]
        )
        total = total.select(["role", *[f"{name}_sum" for name in sums], "n_tokens_max_max"])
        total = total.rename_columns(["role", *sums, "n_tokens_max"]).select(both.column_names)
    return [
        *[_role_counts(row) for row in ([] if total is None else total.to_pylist())],
        _counts_of_no_message(dataset),
    ]


def _role_counts(row: dict[str, Any]) -> RoleCounts:  # Any: of columns
    n_messages, n_tokens = row["n_tokens_count"], row["n_tokens_sum"]
    return RoleCounts(
        role=row["role"],
        n_messages=n_messages,
        n_tokens=n_tokens,
        mean_tokens=n_tokens / n_messages,
        max_tokens=row["n_tokens_max"],
        n_sampled=row["n_sampled_sum"],
        n_unknown=row["n_sampled_count"],
        n_content=row["n_content_sum"],
        n_control_tokens=row["n_control_tokens_sum"],
    )


def _counts_of_no_message(dataset: Dataset) -> RoleCounts:
    n_tokens = n_sampled = n_content = 0
    columns = ["message_index", "start", "stop", "is_sampled", "is_content"]
    for batch in dataset.batches("spans", columns):
        spans = batch.filter(pc.equal(batch["message_index"], NO_MESSAGE))
        lengths = spans["stop"].to_numpy().astype(np.int64) - spans["start"].to_numpy()
        n_tokens += int(lengths.sum())
        n_sampled += int(lengths[spans["is_sampled"].fill_null(False).to_numpy()].sum())
        n_content += int(lengths[spans["is_content"].fill_null(False).to_numpy()].sum())
    return RoleCounts(NO_MESSAGE_LABEL, 0, n_tokens, None, None, n_sampled, 0, n_content, 0)


def message_counts_of(dataset: Dataset) -> Iterator[MessageCounts]:
    """One entry per message, in input order."""
    columns = list(MessageCounts._fields)
    for batch in dataset.batches("messages", columns):
        for row in batch.to_pylist():
            yield MessageCounts(**{**row, "flags": tuple(row["flags"])})


def status_counts(dataset: Dataset) -> dict[str, int]:
    """Conversations (or branches) of each status but ok, in the order of their names."""
    counts: Counter[str] = Counter()
    for status, n in _value_counts(dataset, "conversations", "status").items():
        counts.update(dict.fromkeys(status.split(","), n))
    del counts["ok"]
    return dict(sorted(counts.items()))


def _value_counts(dataset: Dataset, table: str, column: str) -> Counter[str]:
    """How often each text is there; of lists, each of their texts."""
    counts: Counter[str] = Counter()
    for batch in dataset.batches(table, [column]):
        values = batch[column]
        flat = pc.list_flatten(values) if pa.types.is_list(values.type) else values
        for found in pc.value_counts(flat).to_pylist():
            counts[found["values"]] += found["counts"]
    return counts


class WindowCounts(NamedTuple):
    """The windows that texts were cut into.

    Attributes:
        n_texts: Texts.
        n_windows: Of all of them.
        n_tokens: In all windows; those that windows share as often as they occur.
        n_counted: Those that are no context and not put there by the tokenizer.
        n_left_out: Texts with an end that fills no window, which is in none.
    """

    n_texts: int
    n_windows: int
    n_tokens: int
    n_counted: int
    n_left_out: int


def window_counts(dataset: Dataset) -> WindowCounts | None:
    """The windows of a dataset; None where none was cut."""
    if dataset.manifest.settings.get("chunk") is None:
        return None
    texts: set[str] = set()
    n_windows = n_tokens = n_counted = n_left_out = 0
    for batch in dataset.batches("conversations", ["conversation_id", "n_tokens", "n_content", "status"]):
        texts.update(batch["conversation_id"].to_pylist())
        n_windows += len(batch)
        n_tokens += pc.sum(batch["n_tokens"]).as_py() or 0
        n_counted += pc.sum(batch["n_content"]).as_py() or 0
        n_left_out += sum(TAIL_LEFT_OUT_STATUS in each.split(",") for each in batch["status"].to_pylist())
    return WindowCounts(len(texts), n_windows, n_tokens, n_counted, n_left_out)


class ControlTokens(NamedTuple):
    """Control tokens that came from the content of messages of one role."""

    role: str
    n_messages: int
    n_tokens: int


def control_tokens(dataset: Dataset) -> list[ControlTokens]:
    """One entry per role that has any, in the order of first appearance."""
    n_messages: Counter[str] = Counter()
    n_tokens: Counter[str] = Counter()
    for batch in dataset.batches("messages", ["role", "n_control_tokens"]):
        found = batch.filter(pc.greater(batch["n_control_tokens"], 0))
        for role, n in zip(found["role"].to_pylist(), found["n_control_tokens"].to_pylist(), strict=True):
            n_messages[role] += 1
            n_tokens[role] += n
    return [ControlTokens(role, n, n_tokens[role]) for role, n in n_messages.items()]


class FlagCounts(NamedTuple):
    """Messages by what a reader should know of them.

    Attributes:
        changed: By what was changed in them before the template saw them.
        not_printed: By the key that the template neither printed nor read.
        other: By flag.
    """

    changed: dict[str, int]
    not_printed: dict[str, int]
    other: dict[str, int]


def flag_counts(dataset: Dataset) -> FlagCounts:
    """Number of messages that carry each flag."""
    counts = dict(sorted(_value_counts(dataset, "messages", "flags").items()))
    not_printed = {flag: n for flag, n in counts.items() if flag.startswith(NOT_PRINTED)}
    changed = {flag.value: counts[flag] for flag in CHANGES if flag in counts}
    return FlagCounts(
        changed,
        {flag.removeprefix(NOT_PRINTED): n for flag, n in not_printed.items()},
        {flag: n for flag, n in counts.items() if flag not in not_printed and flag not in changed},
    )
