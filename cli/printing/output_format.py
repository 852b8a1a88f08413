"""How results are printed."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """How tables are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
