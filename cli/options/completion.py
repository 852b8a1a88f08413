"""What shells complete behind an option."""

from __future__ import annotations

from collections.abc import Iterable

from tokscore.dataset.choices import GroupBy


def formats(incomplete: str) -> list[str]:
    """Names of input formats."""
    from tokscore.rendering.reading.formats import FORMATS

    return _beginning(FORMATS, incomplete)


def columns(incomplete: str) -> list[str]:
    """Columns to group by; behind a comma the next one."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning([*GroupBy, "metadata."], last)]


def _beginning(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]
