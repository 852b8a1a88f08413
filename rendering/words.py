"""Numbers in sentences."""

from __future__ import annotations


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """The number with its noun: 1 message, 2 messages.

    Args:
        n: How many.
        noun: Of one.
        plural: Of several; with an s by default.
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {plural or noun + 's'}"
