"""Why records could not be used, a line for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import counted

if TYPE_CHECKING:
    from tokscore.rendering.failure_reasons import FailureReason

_SHOWN = 5


def note_failures(reasons: Sequence[FailureReason]) -> None:
    """Print the most frequent reasons with their counts and the first record of each."""
    total = sum(each.n for each in reasons)
    for each in reasons[:_SHOWN]:
        note(f"{each.n:,} of {counted(total, 'failure')}: {each.first.error()}")
    if len(reasons) > _SHOWN:
        n = sum(each.n for each in reasons[_SHOWN:])
        note(f"{n:,} of {counted(total, 'failure')}: {counted(len(reasons) - _SHOWN, 'other reason')}.")
