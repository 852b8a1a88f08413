"""Opening what a user named on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokscore.cli.options import MessagesChoice, TruncateChoice, VerifyChoice
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import (
    Column,
    counted,
    duration,
    note,
    print_json,
    print_rows,
    size_in_words,
)

if TYPE_CHECKING:
    from tokscore.dataset.reading import Dataset
    from tokscore.rendering.plan_size import PlanSize
    from tokscore.rendering.source import ConversationSource, DatasetSource


class RenderOptions(NamedTuple):
    """What render and logprobs are told about rendering; the options of the same names."""

    template: Path | None
    template_kwargs: str | None
    tools: Path | None
    add_generation_prompt: bool
    verify: VerifyChoice
    max_tokens: int | None
    truncate: TruncateChoice | None
    template_timeout: float
    template_characters: int
    revision: str | None
    template_time: str | None
    input_format: str | None
    trust_remote_code: bool
    messages: MessagesChoice | None


class PlanCost(NamedTuple):
    """What a scoring run of a plan still takes.

    Attributes:
        n_parts_open: Parts of this shard that are not done.
        n_tokens_open: Tokens in them, equal beginnings counted as often as they occur.
        output_bytes: Of their score table.
        is_measured: The bytes are those of finished parts; otherwise an upper limit.
        tokens_per_s: The engine's rate; None where nobody knows.
        elapsed_s: Seconds in the engine, likewise.
    """

    n_parts_open: int
    n_tokens_open: int
    output_bytes: int
    is_measured: bool
    tokens_per_s: float | None
    elapsed_s: float | None


def open_conversations(
    inputs: list[str], model: str, chosen: RenderOptions, out: Path | None, *, allow_dataset: bool
) -> ConversationSource | DatasetSource:
    """The token source for the arguments of render and logprobs.

    Raises:
        UsageError: Options that do not fit the inputs or are no JSON.
        InputError: An input, the tokenizer or the template cannot be used.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.rendering.inputs import expand_patterns, open_inputs, warnings_about
    from tokscore.rendering.source import ConversationSource

    kwargs = _parse_object(chosen.template_kwargs)
    settings = chosen._asdict() | {"template_kwargs": kwargs}
    source = open_inputs(expand_patterns(inputs), model, out=out, **settings)
    if not allow_dataset and not isinstance(source, ConversationSource):
        raise UsageError(f"{inputs[0]} is a dataset already; expected files of conversations.")
    for line in warnings_about(source):
        note(line)
    return source


def note_statuses(dataset: Dataset) -> None:
    """Say what was done to conversations that are not as they came."""
    from tokscore.analytics.groups.dataset_notes import status_counts

    for status, n in status_counts(dataset).items():
        note(f"{counted(n, 'conversation')} with the status {status} (see status in docs/columns.md).")


def note_outcome(out: Path, n_failed: int, n_parts_skipped: int, n_parts: int) -> None:
    """Say what was left to do and what failed.

    Args:
        out: The dataset.
        n_failed: Conversations that failed now.
        n_parts_skipped: Parts that were done before.
        n_parts: All parts.
    """
    if n_parts_skipped == n_parts:
        note(f"{out} was complete already, there was nothing to do.")
    elif n_parts_skipped:
        note(f"{n_parts_skipped:,} of {n_parts:,} parts were done already.")
    if n_failed:
        note(f"{counted(n_failed, 'conversation')} failed, listed in {out / 'errors'}.")


def _parse_object(text: str | None) -> dict[str, Any] | None:  # Any: JSON values
    from tokscore.dataset.errors import UsageError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--template-kwargs is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UsageError('--template-kwargs is no object; expected one such as {"enable_thinking": false}.')
    return value


def print_plan(
    source: ConversationSource | DatasetSource,
    form: Format,
    *,
    exact: bool,
    cost: Callable[[PlanSize], PlanCost] | None = None,
) -> None:
    """Print what a run would read and how many tokens that is, for `--dry-run`.

    Args:
        source: What was planned.
        form: How to print it.
        exact: Read everything to count its tokens, instead of a sample.
        cost: What a run of that size takes.
    """
    from tokscore.rendering.plan_size import plan_size

    size = plan_size(source, exact=exact)
    rows: list[dict[str, str | int | float | bool | None]] = [
        {
            "input": file.name,
            "size_bytes": file.size_bytes,
            "n_parts": sum(part.file == i for part in source.parts),
        }
        for i, file in enumerate(source.inputs)
    ]
    columns = (Column("input", "input"), Column("size_bytes", "bytes"), Column("n_parts", "parts"))
    if form is Format.JSON:
        costs = {} if cost is None else cost(size)._asdict()
        print_json({"inputs": rows, **size._asdict(), **costs})
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
            _note_cost(cost(size))
    note("nothing was written (--dry-run).")


def _note_cost(cost: PlanCost) -> None:
    parts = counted(cost.n_parts_open, "part")
    limit = "about" if cost.is_measured else "at most"
    note(
        f"to do: {parts}, {counted(cost.n_tokens_open, 'token')}; {limit} "
        f"{size_in_words(cost.output_bytes)} of scores."
    )
    if cost.elapsed_s is None:
        note("no time can be told before a part is done; --tokens-per-s N assumes a rate.")
    else:
        note(f"about {duration(cost.elapsed_s)} in the engine at {cost.tokens_per_s:,.0f} tokens/s.")
