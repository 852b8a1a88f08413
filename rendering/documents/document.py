"""A text that nobody said to anybody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One text, such as an article or a file of code.

    Attributes:
        text: Never empty.
        metadata: The other fields of its record as JSON text, None without.
    """

    text: str
    metadata: str | None = None
