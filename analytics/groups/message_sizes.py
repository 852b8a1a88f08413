"""How many tokens messages and spans have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tokscore.analytics.groups.grouping import MESSAGE_COLUMNS, Grouping, GroupKey
from tokscore.dataset.frames import scan_table
from tokscore.dataset.reading import Dataset


class MessageSizes(NamedTuple):
    """Tokens per message of one group of messages, rendered or not.

    Attributes:
        n_messages: At least one.
        minimum: Least tokens of one.
        mean: Tokens of one.
        maximum: Most tokens of one.
        p95: The least number that 95 % of the messages do not exceed.
    """

    n_messages: int
    minimum: int
    mean: float
    maximum: int
    p95: int


def message_sizes(dataset: Dataset, by: Grouping) -> tuple[dict[GroupKey, MessageSizes], MessageSizes | None]:
    """The sizes of every group and of all messages; none where a group is no set of messages."""
    if not {*by.names} <= MESSAGE_COLUMNS:
        return {}, None
    messages = scan_table(dataset, "messages").select(*by.names, "n_tokens").collect()
    size = pl.col("n_tokens")
    rank = (pl.len() * 19 + 19) // 20
    sizes = [
        pl.len().alias("n"),
        size.min().alias("min"),
        size.mean().alias("mean"),
        size.max().alias("max"),
        size.sort().get(rank - 1, null_on_oob=True).alias("p95"),
    ]
    groups = messages.group_by(by.names).agg(sizes)
    total = messages.select(sizes).row(0)
    found = {by.key(row[: len(by.names)]): MessageSizes(*row[len(by.names) :]) for row in groups.iter_rows()}
    return found, MessageSizes(*total) if total[0] else None


def spans(dataset: Path | str) -> Iterator[dict[str, object]]:
    """Every run of tokens with one owner, in order, as the spans table has it, and its length `n_tokens`.

    Raises:
        InputError: No whole dataset, or tables that do not belong together.
    """
    for batch in Dataset(Path(dataset)).batches("spans"):
        for row in batch.to_pylist():
            yield {**row, "n_tokens": row["stop"] - row["start"]}


def n_branching(dataset: Path | str) -> int:
    """How many conversations of a dataset have several branches."""
    conversations = scan_table(Dataset(Path(dataset)), "conversations")
    ids = conversations.filter(pl.col("branch") > 0).select(pl.col("conversation_id").n_unique())
    return int(ids.collect().item())
