"""How much of a dataset is there and scored, and why the rest is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tokscore.dataset.schema import DatasetKind

if TYPE_CHECKING:
    from tokscore.analytics.groups.token_counts import TokenCounts
    from tokscore.dataset.reading import Dataset


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of a dataset; None for what a token dataset cannot have.

    Attributes:
        n_conversations: Conversations (or branches) with tokens.
        n_failed: Records that became error rows.
        n_tokens: Tokens.
        n_scored: Tokens with a logprob.
        n_without_context: Tokens without a logprob because nothing is before them.
        n_not_asked: Tokens without a logprob because only some were asked for.
        asked: Which tokens were asked for, as the manifest says.
    """

    n_conversations: int
    n_failed: int
    n_tokens: int
    n_scored: int | None = None
    n_without_context: int | None = None
    n_not_asked: int | None = None
    asked: str | None = None

    @property
    def n_unscored(self) -> int | None:
        """Tokens without a logprob."""
        return None if self.n_scored is None else self.n_tokens - self.n_scored

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"n_unscored": self.n_unscored}


def coverage_of(dataset: Dataset, counts: TokenCounts) -> Coverage:
    """The coverage of a dataset, given the counts of all its tokens."""
    n_tokens = counts.numbers["n_tokens"]
    known = (dataset.n_conversations(), sum(1 for _ in dataset.failures()), n_tokens)
    if dataset.manifest.kind is not DatasetKind.SCORES:
        return Coverage(*known)
    n_scored = counts.n_scored
    n_without_context = min(dataset.n_with_tokens, n_tokens - n_scored)
    asked = str(dataset.manifest.settings.get("score", "all"))
    return Coverage(*known, n_scored, n_without_context, n_tokens - n_scored - n_without_context, asked)
