"""Which groups of a report a table shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokscore.analytics.groups.grouping import Grouping, GroupKey


class GroupRow(Protocol):
    """The numbers of a group."""

    @property
    def group(self) -> GroupKey:
        """What its tokens share."""


Row = TypeVar("Row", bound=GroupRow)
_NAMED = 5


def shown_groups(
    rows: Sequence[Row], by: Grouping, has_values: Callable[[Row], bool], n_tokens: Callable[[Row], int]
) -> list[Row]:
    """The groups with values and a position, if that makes groups; a note counts the others.

    Args:
        rows: All groups.
        by: What they share.
        has_values: Whether a group has any.
        n_tokens: Tokens of a group, with values or not.
    """
    from tokscore.analytics.groups.grouping import group_label

    shown = [row for row in rows if has_values(row) and not by.is_nowhere(row.group)]
    kept = {id(row) for row in shown}
    others = [row for row in rows if id(row) not in kept]
    if others:
        names = [group_label(row.group, by) for row in others[:_NAMED]]
        named = "; ".join([*names, *(["…"] if len(others) > _NAMED else [])])
        n = sum(map(n_tokens, others))
        note(f"left out, without values: {counted(len(others), 'group')} ({named}), {counted(n, 'token')}.")
    return shown


def note_more(n_all: int, n_kept: int, option: str = "--top") -> None:
    """Say how many groups an option leaves out."""
    if n_kept < n_all:
        note(f"{counted(n_all - n_kept, 'group')} more ({option} {n_kept}).")
