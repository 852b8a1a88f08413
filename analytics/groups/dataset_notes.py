"""Counts of a finished dataset, from its small tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from tokscore.dataset.frames import scan_table
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


def role_counts(dataset: Dataset) -> list[RoleCounts]:
    """One entry per role in the order of first appearance, then tokens of no message."""
    messages = (
        scan_table(dataset, "messages")
        .group_by("role", maintain_order=True)
        .agg(
            n_messages=pl.len(),
            n_tokens=pl.col("n_tokens").sum(),
            mean_tokens=pl.col("n_tokens").mean(),
            max_tokens=pl.col("n_tokens").max(),
            n_sampled=pl.col("n_sampled").sum(),
            n_unknown=pl.col("n_sampled").is_null().sum(),
            n_content=pl.col("n_content").sum(),
            n_control_tokens=pl.col("n_control_tokens").sum(),
        )
        .collect()
    )
    length = (pl.col("stop") - pl.col("start")).cast(pl.Int64)
    template = (
        scan_table(dataset, "spans")
        .filter(pl.col("message_index") == NO_MESSAGE)
        .select(
            n_tokens=length.sum(),
            n_sampled=length.filter(pl.col("is_sampled")).sum(),
            n_content=length.filter(pl.col("is_content")).sum(),
        )
        .collect()
    )
    counts = [RoleCounts(**row) for row in messages.iter_rows(named=True)]
    n_tokens, n_sampled, n_content = template.row(0)
    return [*counts, RoleCounts(NO_MESSAGE_LABEL, 0, n_tokens, None, None, n_sampled, 0, n_content, 0)]


def message_counts_of(dataset: Dataset) -> Iterator[MessageCounts]:
    """One entry per message, in input order."""
    columns = list(MessageCounts._fields)
    for batch in dataset.batches("messages", columns):
        for row in batch.to_pylist():
            yield MessageCounts(**{**row, "flags": tuple(row["flags"])})


def status_counts(dataset: Dataset) -> dict[str, int]:
    """Conversations (or branches) of each status but ok, in the order of their names."""
    frame = (
        scan_table(dataset, "conversations")
        .select(pl.col("status").str.split(",").explode())
        .filter(pl.col("status") != "ok")
        .group_by("status")
        .len()
        .sort("status")
        .collect()
    )
    return dict(frame.iter_rows())


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
    is_cut = pl.col("status").str.split(",").list.contains(TAIL_LEFT_OUT_STATUS)
    frame = scan_table(dataset, "conversations").select(
        pl.col("conversation_id").n_unique(),
        n_windows=pl.len(),
        n_tokens=pl.col("n_tokens").cast(pl.Int64).sum(),
        n_counted=pl.col("n_content").cast(pl.Int64).sum(),
        n_left_out=is_cut.sum(),
    )
    return WindowCounts(*frame.collect().row(0))


class ControlTokens(NamedTuple):
    """Control tokens that came from the content of messages of one role."""

    role: str
    n_messages: int
    n_tokens: int


def control_tokens(dataset: Dataset) -> list[ControlTokens]:
    """One entry per role that has any, in the order of first appearance."""
    frame = (
        scan_table(dataset, "messages")
        .filter(pl.col("n_control_tokens") > 0)
        .group_by("role", maintain_order=True)
        .agg(n_messages=pl.len(), n_tokens=pl.col("n_control_tokens").sum())
        .collect()
    )
    return [ControlTokens(**row) for row in frame.iter_rows(named=True)]


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
    counts = _flag_counts(dataset)
    not_printed = {flag: n for flag, n in counts.items() if flag.startswith(NOT_PRINTED)}
    changed = {flag.value: counts[flag] for flag in CHANGES if flag in counts}
    return FlagCounts(
        changed,
        {flag.removeprefix(NOT_PRINTED): n for flag, n in not_printed.items()},
        {flag: n for flag, n in counts.items() if flag not in not_printed and flag not in changed},
    )


def _flag_counts(dataset: Dataset) -> dict[str, int]:
    frame = (
        scan_table(dataset, "messages")
        .select(pl.col("flags").explode(empty_as_null=False))
        .group_by("flags")
        .len()
        .sort("flags")
        .collect()
    )
    return {flag: n for flag, n in frame.iter_rows() if flag is not None}
