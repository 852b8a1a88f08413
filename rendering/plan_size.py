"""How many tokens a plan holds, before anything is written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.tokens import FailedConversation, RenderedConversation
from tokscore.rendering.conversations.prefix_tree import share
from tokscore.rendering.failure_reasons import FailureReason, failure_reasons

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokscore.dataset.manifest import Part
    from tokscore.rendering.source import TokenSource

SAMPLED_PARTS = 8
SAMPLED_SEQUENCES = 128  # of each part


class PlanSize(NamedTuple):
    """Tokens of a plan.

    Attributes:
        n_conversations: Records, those that fail included.
        n_sequences: Conversations and branches.
        n_logical_tokens: Of all sequences.
        n_whole_tokens: Of those that are neither equal to another in the same part nor its beginning.
        n_unique_tokens: What has to be scored where equal beginnings within a part are scored once.
        n_failed: Records that cannot be used.
        n_read: Sequences that were read to tell; all of them where `is_exact`.
        is_exact: Nothing was estimated.
        failures: Why records that were read cannot be used, the most frequent first.
    """

    n_conversations: int
    n_sequences: int
    n_logical_tokens: int
    n_whole_tokens: int
    n_unique_tokens: int
    n_failed: int
    n_read: int
    is_exact: bool
    failures: tuple[FailureReason, ...] = ()


def plan_size(source: TokenSource, *, exact: bool = False) -> PlanSize:
    """Read a sample of the plan, or all of it, and count its tokens.

    Args:
        source: Planned conversations, or a token dataset.
        exact: Read everything; otherwise the first records of up to eight parts stand for the rest.
    """
    parts = source.parts if exact else sampled_parts(source.parts)
    n_sequences = n_logical = n_whole = n_unique = n_records = 0
    failures: list[FailedConversation] = []
    is_whole = len(parts) == len(source.parts)
    for part in parts:
        taken, is_read = beginning(source.read(part), math.inf if exact else SAMPLED_SEQUENCES)
        is_whole &= is_read
        sequences = [item.tokens.token_ids for item in taken if isinstance(item, RenderedConversation)]
        shared = share(sequences)
        n_sequences += len(sequences)
        n_logical += shared.n_logical
        n_whole += shared.n_whole
        n_unique += shared.n_unique
        failures += [item for item in taken if isinstance(item, FailedConversation)]
        n_records += len({conversation_id(item) for item in taken})
    factor = 1.0 if is_whole else source.n_conversations / max(n_records, 1)
    return PlanSize(
        n_conversations=source.n_conversations,
        n_sequences=round(n_sequences * factor),
        n_logical_tokens=round(n_logical * factor),
        n_whole_tokens=round(n_whole * factor),
        n_unique_tokens=round(n_unique * factor),
        n_failed=round(len(failures) * factor),
        n_read=n_sequences,
        is_exact=is_whole,
        failures=tuple(failure_reasons(failures)),
    )


def sampled_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """Some of the parts, from all over the plan; all where they are few."""
    if len(parts) <= SAMPLED_PARTS:
        return parts
    return [parts[i * len(parts) // SAMPLED_PARTS] for i in range(SAMPLED_PARTS)]


def beginning(
    items: Iterable[RenderedConversation | FailedConversation], n_wanted: float
) -> tuple[list[RenderedConversation | FailedConversation], bool]:
    """At least so many items with all branches of their records, and whether there are no others."""
    taken: list[RenderedConversation | FailedConversation] = []
    for item in items:
        if len(taken) >= n_wanted and conversation_id(item) != conversation_id(taken[-1]):
            return taken, False
        taken.append(item)
    return taken, True


def conversation_id(item: RenderedConversation | FailedConversation) -> str:
    """The same for all branches of a record."""
    return item.conversation_id if isinstance(item, FailedConversation) else item.row.conversation_id
