"""A comparison in one sentence: which group differs most, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from tokscore.analytics.comparison.diff_rows import DiffRow
from tokscore.dataset.errors import counted


def verdict(groups: Sequence[tuple[str, DiffRow]], alpha: float) -> str:
    """One or two sentences about the group whose GJS is largest for certain, by its lower limit.

    Args:
        groups: Names and rows.
        alpha: Weight of the teacher in the GJS.
    """
    name = f"gjs_{alpha:g}"
    rows = [(label, row) for label, row in groups if row.n_tokens and row.intervals[name].lower is not None]
    if not rows:
        return "No token was compared."
    label, most = max(rows, key=lambda each: each[1].intervals[name].lower or 0.0)
    interval = most.intervals[name]
    gjs = limits(interval.lower, interval.upper)
    text = f"Most apart: {label}, GJS {alpha:g} {gjs} a token over {counted(most.n_tokens, 'token')}."
    ratio = most.points.get("log_ratio")
    if ratio is None:
        return text
    text += f" The teacher gives its tokens {ratio:+.4f} nats of logprob"
    return f"{text}{_how_sure(most)}."


def _how_sure(row: DiffRow) -> str:
    if not row.confidence:
        return ""
    found = next((each for each in row.confidence if each.name == "log_ratio"), None)
    if found is None or found.lower is None or found.upper is None:
        return ": how sure that is cannot be told from so few conversations"
    is_chance = found.lower <= 0 <= found.upper
    return (
        f": T - S is {limits(found.lower, found.upper)} with 95 % confidence over "
        f"{counted(found.n_conversations, 'conversation')}"
        + (", which chance alone could give" if is_chance else "")
    )


def limits(lower: float | None, upper: float | None) -> str:
    """An interval; without a lower limit there is none at all."""
    if lower is None:
        return "-"
    return f"[{lower:.4f}, {'unbounded' if upper is None else f'{upper:.4f}'}]"
