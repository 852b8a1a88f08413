"""Recorded logprobs beside scored ones, a line a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokscore.analytics.report.conversation.scored import ScoredConversation
    from tokscore.analytics.report.conversation.token_texts import TokenText
    from tokscore.cli.printing.styled import StyledConsole


def print_recorded_tokens(
    console: StyledConsole, conversation: ScoredConversation, texts: list[TokenText]
) -> None:
    """Print every token that carries a recorded logprob.

    Args:
        console: Where to.
        conversation: One that carries some.
        texts: Of its tokens.
    """
    import numpy as np

    from tokscore.analytics.report.conversation.metrics import recorded_gap
    from tokscore.cli.printing.conversation.fitted import print_fitted
    from tokscore.cli.printing.visible import visible

    assert conversation.recorded is not None
    rows = []
    gaps, scores = recorded_gap(conversation), conversation.teacher
    for i in np.flatnonzero(~np.isnan(conversation.recorded)).tolist():
        text = visible(texts[i].text) if texts[i].is_literal else texts[i].text
        numbers = (conversation.recorded[i], scores.logprobs[i], gaps[i])
        rank = scores.ranks[i]
        cells = [str(i), text, *map(_shown, numbers), "-" if np.isnan(rank) else f"{rank:,.0f}"]
        rows.append(cells)
    console.print()
    print_fitted(console, ("position", "token", "recorded", "scored", "scored - recorded", "rank"), rows)


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:.4f}"  # NaN
