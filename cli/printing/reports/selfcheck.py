"""The tables of `selfcheck`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, print_rows

if TYPE_CHECKING:
    from tokscore.scoring.selfcheck import SelfCheck

COLUMNS = (
    Column("pass", "compared"),
    Column("n_tokens", "tokens"),
    Column("mean", "mean |delta|", 7),
    Column("p95", "p95", 7),
    Column("p99", "p99", 7),
    Column("max", "max", 7),
    Column("share_outside", "outside [0.9, 1.1]", 5),
    Column("top1_agreement", "same top-1", 5),
    Column("rank_agreement", "same rank", 5),
)
LINES = (
    Column("name", "line"),
    Column("found", "found", 7),
    Column("limit", "limit", 7),
    Column("passed", "passed"),
)


def print_selfcheck(found: SelfCheck, form: Format) -> None:
    """Print how far logprobs differ as a table or CSV, and in a table the limits."""
    passes = (
        ("with the reference", found.against_reference),
        ("second pass", found.noise_floor.warm),
        ("random order", found.noise_floor.shuffled),
    )
    rows = [{"pass": name, **agreement._asdict()} for name, agreement in passes]
    print_rows(COLUMNS, rows, form, title=f"{found.engine.engine}, {found.engine.dtype}: logprobs in nats")
    if form is Format.TABLE:
        # What no JSON holds is the reason why a line fails, so the table has it.
        lines = [
            row | {"found": line.found} for row, line in zip(limit_rows(found), found.lines, strict=True)
        ]
        print_rows(LINES, lines, form, title="Limits")
    note(f"a second pass gave {'the same bits' if found.is_deterministic else 'other bits'}.")


def limit_rows(found: SelfCheck) -> list[dict[str, object]]:
    """What was found for each limit; numbers that are not finite are None."""
    return [
        {"name": line.name, "found": finite(line.found), "limit": line.limit, "passed": line.is_passed}
        for line in found.lines
    ]


def finite(value: float | None) -> float | None:
    """The number, or None where it is infinite or NaN."""
    from math import isfinite

    return value if value is not None and isfinite(value) else None
