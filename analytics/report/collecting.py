"""One pass over the conversations of a report: sums, a sample for the colours, and what the page keeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tokscore.analytics.report.conversation.metrics import level_limits, metric_values, salience
from tokscore.analytics.report.conversation.scored import ScoredConversation
from tokscore.analytics.report.conversation.token_texts import TokenTexts
from tokscore.analytics.report.packing import Packed, pack, script_json
from tokscore.analytics.report.totals import BatchTotals, TokenSample, Totals
from tokscore.dataset.choices import Metric

T = TypeVar("T")

_PREVIEW_TOKENS = 24
_PREVIEW_CHARACTERS = 80
# The script element around it.
_ELEMENT_BYTES = 64


class KeptConversation(NamedTuple):
    """A conversation that the page holds.

    Attributes:
        row: Of the list: a JSON object.
        packed: Its tokens.
    """

    row: dict[str, object]
    packed: Packed


class BoundedHeap(Generic[T]):
    """Keeps the items of highest priority that fit into a number of bytes together.

    Memory holds what is kept and one more.

    Attributes:
        n_offered: Items offered.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._heap: list[tuple[float, int, int, T]] = []
        self._worst_dropped = float("-inf")
        self.n_offered = 0

    def offer(self, priority: float, make: Callable[[], tuple[T, int]]) -> None:
        """Offer one item.

        Args:
            priority: Higher is kept first; among equals, the earlier.
            make: Makes the item and its size in bytes; not called where it cannot be kept anyway.
        """
        self.n_offered += 1
        if priority <= self._worst_dropped:
            return
        item, size_bytes = make()
        if size_bytes > self._max_bytes:
            return
        heapq.heappush(self._heap, (priority, -self.n_offered, size_bytes, item))
        self._used += size_bytes
        while self._used > self._max_bytes:
            dropped, _, freed, _ = heapq.heappop(self._heap)
            self._used -= freed
            self._worst_dropped = dropped

    def kept(self) -> list[T]:
        """The kept items, highest priority first."""
        return [entry[3] for entry in sorted(self._heap, reverse=True)]


class PageContents(NamedTuple):
    """Results of one pass.

    Attributes:
        metrics: Those that can be shown.
        totals: Sums.
        limits: Saliences at which levels begin, by metric; None without values.
        kept: What the page can hold, the most divergent first.
    """

    metrics: tuple[Metric, ...]
    totals: Totals
    limits: dict[str, list[float | None]]
    kept: list[KeptConversation]


class Vocabulary(NamedTuple):
    """The texts that the page needs.

    Attributes:
        texts: By token id.
        named: Ids whose text is a name for them, not what a model reads.
    """

    texts: dict[int, str]
    named: list[int]


def collect(
    batches: Iterable[tuple[BatchTotals, Sequence[ScoredConversation]]],
    texts: TokenTexts,
    *,
    metrics: Sequence[Metric],
    kept: Sequence[str] = (),
    max_bytes: int,
) -> PageContents:
    """Read everything once; memory grows with `max_bytes`, not with the number of tokens.

    Args:
        batches: Conversations with their sums; compared, if there is a student.
        texts: The teacher's vocabulary.
        metrics: That can be shown; conversations in which the first stands out most are kept.
        kept: Columns of the sums that are kept for every conversation.
        max_bytes: For the conversations that are kept.
    """
    ranking = metrics[0]
    totals, heap = Totals(kept), BoundedHeap[KeptConversation](max_bytes)
    samples = {metric: TokenSample() for metric in metrics}
    for sums, conversations in batches:
        totals.add(sums)
        for conversation in conversations:
            means: dict[str, float | None] = {}
            priority = -np.inf
            for metric in metrics:
                values = metric_values(conversation, metric)
                samples[metric].add(salience(metric, values))
                known = values[~np.isnan(values)]
                with np.errstate(invalid="ignore"):  # of log-ratios that are infinite both ways
                    mean = float(known.mean()) if len(known) else np.nan
                means[metric.value] = float(f"{mean:.6g}") if np.isfinite(mean) else None
                if metric is ranking and len(known):
                    priority = float(salience(metric, known).mean())
            heap.offer(priority, lambda c=conversation, m=means: _keep(c, m, texts))  # type: ignore[misc]
    limits = {metric.value: level_limits(samples[metric].values()).tolist() for metric in metrics}
    return PageContents(
        tuple(metrics),
        totals,
        {name: [x if np.isfinite(x) else None for x in values] for name, values in limits.items()},
        heap.kept(),
    )


def vocabulary_of(kept: Sequence[KeptConversation], texts: TokenTexts) -> Vocabulary:
    """The texts of all ids that occur in conversations."""
    ids: list[int] = []
    if kept:
        ids = np.unique(np.concatenate([each.packed.token_ids for each in kept])).tolist()
    found = dict(zip(ids, texts.of(ids), strict=True))
    return Vocabulary(
        {token_id: text.text for token_id, text in found.items()},
        [token_id for token_id, text in found.items() if not text.is_literal],
    )


def _keep(
    conversation: ScoredConversation, means: dict[str, float | None], texts: TokenTexts
) -> tuple[KeptConversation, int]:
    packed = pack(conversation)
    row: dict[str, object] = {
        "id": conversation.conversation_id,
        "branch": conversation.branch,
        "n_tokens": len(conversation),
        "preview": _preview(conversation, texts),
        "roles": sorted({message.role for message in conversation.messages}),
        "means": means,
    }
    size_bytes = len(packed.json.encode()) + len(script_json(row).encode()) + _ELEMENT_BYTES
    return KeptConversation(row, packed), size_bytes


def _preview(conversation: ScoredConversation, texts: TokenTexts) -> str:
    """The first words of its first user message, or of its first message."""
    roles = [message.role for message in conversation.messages]
    message = roles.index("user") if "user" in roles else 0
    mine = np.flatnonzero((conversation.message_indices == message) & conversation.is_content)
    found = texts.of(conversation.token_ids[mine[:_PREVIEW_TOKENS]].tolist())
    text = " ".join("".join(token.text for token in found if token.is_literal).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[:_PREVIEW_CHARACTERS]
