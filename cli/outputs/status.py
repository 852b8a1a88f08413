"""`tokscore status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tokscore.cli.options import shared as options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import duration
from tokscore.cli.printing.tables import Column, counted, print_json, print_rows

if TYPE_CHECKING:
    from tokscore.dataset.outputs.status import Status

EPILOG = """Examples:

\b
  tokscore status demo-output/teacher
  tokscore status demo-output/tokens --format json
"""
_LEAST_S, _MOST_S = 0.1, 1e6
_PARTS = (
    Column("n_parts", "parts"),
    Column("n_done", "done"),
    Column("n_running", "running"),
    Column("n_failed", "failed"),
    Column("n_missing", "missing"),
    Column("n_tokens", "tokens done"),
    Column("tokens_per_s", "tokens/s", 0),
    Column("tokens_per_s_now", "now", 0),
)
_REPLICAS = (
    Column("name", "replica"),
    Column("host", "host"),
    Column("pid", "process"),
    Column("state", "state"),
    Column("part", "part"),
    Column("n_parts", "parts done"),
    Column("n_tokens", "tokens"),
    Column("tokens_per_s", "tokens/s", 0),
    Column("heartbeat_s", "s since heartbeat", 0),
)
_FAILED = (Column("part", "part"), Column("reason", "why it failed"))


def status(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Output of a run, finished or not.")],
    *,
    watch: Annotated[
        bool, options.option("--watch", help="Print it again and again, until all parts are done.")
    ] = False,
    every: Annotated[
        float, options.option("--every", metavar="S", help="Seconds between, for --watch.")
    ] = 5.0,
    form: options.FormatOption = Format.TABLE,
) -> None:
    """Say how far a run is: parts done, in work, failed, missing, tokens a second, and the time that is left.

    Everything comes from the output alone, also while others write it. Replicas are the processes that claim
    parts.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.outputs.status import status as read

    if not _LEAST_S <= every <= _MOST_S:
        raise UsageError(f"`every` is {every:g}; expected between {_LEAST_S:g} and {_MOST_S:,.0f} seconds.")
    while True:
        found = read(dataset)
        _print(found, form)
        if not watch or found.is_done:
            return
        time.sleep(every)


def _print(found: Status, form: Format) -> None:
    replicas = [each._asdict() for each in found.replicas]
    failed = [{"part": each.part, "reason": each.reason} for each in found.failed]
    document = {**found._asdict(), "replicas": replicas, "failed": failed}
    if form is Format.JSON:
        print_json(document)
        return
    print_rows(_PARTS, [document], form)
    if form is Format.CSV:
        return
    if replicas:
        print_rows(_REPLICAS, replicas, form)
    if failed:
        print_rows(_FAILED, failed, form)
    about = "about " if found.is_estimated else ""
    if found.is_done:
        note("all parts are done.")
    elif found.left_s is not None:
        whose = "that rate" if found.replicas else "the rate of the parts that are done"
        note(f"{about}{duration(found.left_s)} left at {whose}.")
    elif found.n_tokens_left is not None:
        note(f"{about}{counted(found.n_tokens_left, 'token')} left; nobody says at which rate.")
    else:
        note("no part is done yet, so that nobody can tell how many tokens there are.")
