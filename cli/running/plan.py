"""The plan of a run, for `--dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tokscore.cli.printing.console import note
from tokscore.cli.printing.failures import note_failures
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import duration
from tokscore.cli.printing.tables import Column, counted, print_json, print_rows, size_in_words
from tokscore.dataset.choices import OnError

if TYPE_CHECKING:
    from tokscore.rendering.plan_size import PlanSize
    from tokscore.rendering.source import ConversationSource, DatasetSource


class PlanCost(NamedTuple):
    """Time and space that a scoring run of a plan still takes.

    Attributes:
        n_parts_open: Parts of this shard that are not done.
        n_tokens_open: Tokens in them, equal beginnings counted as often as they occur.
        n_tokens_to_compute: Of these, what the engine computes once where sequences are equal or begin alike.
        output_bytes: Of their score table.
        is_measured: The bytes are those of finished parts; otherwise an upper limit.
        tokens_per_s: The engine's rate; None where nobody knows.
        elapsed_s: Seconds in the engine, likewise.
        load_s: Seconds until an engine is ready, where that was measured.
        elapsed_s_on: Seconds until all is done, by the number of replicas that take parts as they get free,
            starting included where it was measured; empty without a rate.
    """

    n_parts_open: int
    n_tokens_open: int
    n_tokens_to_compute: int
    output_bytes: int
    is_measured: bool
    tokens_per_s: float | None
    elapsed_s: float | None
    load_s: float | None
    elapsed_s_on: Mapping[int, float]


def print_plan(
    source: ConversationSource | DatasetSource,
    form: Format,
    *,
    exact: bool,
    on_error: OnError,
    cost: Callable[[PlanSize], PlanCost] | None = None,
    probes: bool = False,
) -> None:
    """Print what a run would read and how many tokens that is, for `--dry-run`, and end as it would.

    Args:
        source: What was planned.
        form: How to print it.
        exact: Read everything to count its tokens, instead of a sample.
        on_error: What a record that cannot be used does to the run.
        cost: What a run of that size takes.
        probes: It measures the rate, where it can.

    Raises:
        InputError: The run would end with it.
    """
    from tokscore.rendering.plan_size import plan_size

    size = plan_size(source, exact=exact)
    if on_error is OnError.SKIP:
        size = size._replace(
            failures=tuple(each._replace(first=each.first.skipped()) for each in size.failures)
        )
    n_parts = Counter(part.file for part in source.parts)
    rows: list[dict[str, str | int | float | bool | None]] = [
        {
            "input": file.name,
            "size_bytes": file.size_bytes,
            "n_parts": n_parts[i],
        }
        for i, file in enumerate(source.inputs)
    ]
    columns = (Column("input", "input"), Column("size_bytes", "bytes"), Column("n_parts", "parts"))
    if form is Format.JSON:
        costs = {} if cost is None else cost(size)._asdict()
        failures = [
            {"n": each.n, "source": f"{each.first.source_file}:{each.first.source_line}"}
            | {"path": each.first.path, "reason": each.first.reason, "hint": each.first.hint}
            for each in size.failures
        ]
        print_json({"inputs": rows, **size._asdict(), "failures": failures, **costs})
    else:
        print_rows(columns, rows, form, title=f"Plan: {counted(source.n_conversations, 'conversation')}")
        about = "" if size.is_exact else "about "
        ratio = size.n_logical_tokens / max(size.n_unique_tokens, 1)
        note(
            f"{about}{counted(size.n_logical_tokens, 'token')} in {counted(size.n_sequences, 'sequence')}, "
            f"{size.n_unique_tokens:,} of them unique ({ratio:.2f} to 1)"
            + (f"; {counted(size.n_failed, 'record')} cannot be used." if size.n_failed else ".")
        )
        if not size.is_exact:
            note(f"estimated from {counted(size.n_read, 'sequence')}; --exact-plan reads all.")
        if cost is not None:
            _note_cost(cost(size), probes=probes)
        note_failures(size.failures)
    note("nothing was written (--dry-run).")
    # What failed when a dataset was rendered ends no run over it.
    new = [each.first for each in size.failures if not each.first.is_known]
    if new and (on_error is OnError.FAIL or not size.n_sequences):
        raise new[0].error()


def _note_cost(cost: PlanCost, *, probes: bool) -> None:
    parts = counted(cost.n_parts_open, "part")
    limit = "about" if cost.is_measured else "at most"
    note(
        f"to do: {parts}, {counted(cost.n_tokens_open, 'token')}, of which the engine computes "
        f"{cost.n_tokens_to_compute:,}; {limit} {size_in_words(cost.output_bytes)} of scores."
    )
    if cost.elapsed_s is None:
        measures = "" if probes else "--probe measures a rate, "
        note(f"no time can be told before a part is done; {measures}--tokens-per-s N assumes a rate.")
    else:
        note(f"about {duration(cost.elapsed_s)} in the engine at {cost.tokens_per_s:,.0f} tokens/s.")
        times = [f"{duration(seconds)} on {n}" for n, seconds in cost.elapsed_s_on.items()]
        starting = "" if cost.load_s is None else f", {duration(cost.load_s)} to start each included"
        note(f"with replicas that each have that rate: {', '.join(times)}{starting}.")
