"""Notes about the messages of a finished dataset: what was changed, left out, or is likely a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import agreeing, counted
from tokscore.cli.printing.visible import visible
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.errors import foreign

if TYPE_CHECKING:
    from tokscore.analytics.groups.dataset_notes import FlagCounts, RoleCounts
    from tokscore.dataset.reading import Dataset

_SHOWN = 10
_TWICE = "arguments_encoded_twice"


def note_flags(flags: FlagCounts, dataset: Dataset, *, has_all: bool) -> None:
    """Say what was changed in messages, not printed, or else unusual.

    Args:
        flags: Of the dataset.
        dataset: Finished.
        has_all: Standard output holds all keys that were not printed.
    """
    if flags.changed:
        changes = ", ".join(f"{flag} {n:,}" for flag, n in flags.changed.items())
        note(f"messages shown to the template as servers show them: {changes} (see docs/messages.md).")
    by_number = sorted(flags.not_printed.items(), key=lambda each: -each[1])
    for key, n in by_number[:_SHOWN]:
        note(f"{visible(key)} of {counted(n, 'message')} was not printed.")
    if len(by_number) > _SHOWN:
        where = "standard output" if has_all else "--format json without --by"
        note(f"{counted(len(by_number) - _SHOWN, 'more key')} not printed; {where} has all.")
    is_server = dataset.manifest.settings.get("messages") == MessageForm.SERVER
    for flag, n in flags.other.items():
        better = "; --messages server shows them as objects" if flag == _TWICE and not is_server else ""
        note(f"{counted(n, 'message')}: {flag}{better}")


def note_control_tokens(dataset: Dataset) -> None:
    """Say where content holds control tokens."""
    from tokscore.analytics.groups import dataset_notes as summary

    injected = summary.control_tokens(dataset)
    if injected:
        by_role = ", ".join(f"{found.role} {found.n_tokens:,}" for found in injected)
        n_tokens = counted(sum(found.n_tokens for found in injected), "control token")
        n_messages = counted(sum(found.n_messages for found in injected), "message")
        note(
            f"warning: {n_tokens} came from the content of {n_messages} ({by_role}); "
            "a model may take them for a turn of its own. --explain ID shows them."
        )


def note_roles(dataset: Dataset, by_role: Sequence[RoleCounts], template: str) -> dict[str, str]:
    """Say which roles are likely mistakes.

    Args:
        dataset: Finished.
        by_role: What it has of every role.
        template: That printed them.

    Returns:
        What each of them is likely meant to be.
    """
    from tokscore.analytics.groups.first_message import first_message
    from tokscore.rendering.messages.roles import meant_role

    n_messages = {counts.role: counts.n_messages for counts in by_role if counts.n_messages}
    meant = {role: known for role in n_messages if (known := meant_role(role, template)) is not None}
    if not meant:
        return meant
    n = sum(n_messages[role] for role in meant)
    shown = [f"{visible(foreign(role))} ({n_messages[role]:,}; {known}?)" for role, known in meant.items()]
    more = [f"{len(shown) - _SHOWN:,} more"] if len(shown) > _SHOWN else []
    first = first_message(dataset, [*meant])
    have = agreeing(n, "has a role", "have roles")
    note(
        f"warning: {counted(n, 'message')} {have} that no chat format uses: "
        f"{', '.join([*shown[:_SHOWN], *more])}. The first is message {first.message_index} of "
        f"{first.source_file}:{first.source_line}."
    )
    return meant
