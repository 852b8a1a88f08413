"""Opening what a user named on the command line."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokscore.cli.options import Format, TruncateChoice, VerifyChoice
from tokscore.cli.output import Column, counted, duration, note, print_json, print_rows, size_in_words

if TYPE_CHECKING:
    from tokscore.rendering.plan_size import PlanSize
    from tokscore.rendering.source import ConversationSource, DatasetSource

_SHOWN_RENAMED = 3


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
    from tokscore.rendering.errors import UsageError
    from tokscore.rendering.limits import TemplateLimits
    from tokscore.rendering.renderer import Verify
    from tokscore.rendering.source import ConversationSource, open_source
    from tokscore.rendering.truncation import LengthLimit, Truncate

    if chosen.truncate is not None and chosen.max_tokens is None:
        raise UsageError("--truncate needs a length: give --max-tokens N as well.")
    truncate = Truncate((chosen.truncate or TruncateChoice.ERROR).value)
    source = open_source(
        expand_patterns(inputs),
        model,
        template=chosen.template,
        template_kwargs=_parse_object(chosen.template_kwargs),
        tools=_read_tools(chosen.tools),
        add_generation_prompt=chosen.add_generation_prompt,
        verify=Verify(chosen.verify.value),
        length_limit=None if chosen.max_tokens is None else LengthLimit(chosen.max_tokens, truncate),
        template_limits=TemplateLimits(chosen.template_timeout, chosen.template_characters),
        revision=chosen.revision,
        template_time=chosen.template_time or _template_time_of(out),
        input_format=chosen.input_format,
    )
    if not isinstance(source, ConversationSource):
        if not allow_dataset:
            raise UsageError(f"{inputs[0]} is a dataset already; expected files of conversations.")
        return source
    renamed = source.plan.renamed
    if renamed:
        shown = ", ".join(f"{wanted} is now {unique}" for wanted, unique in renamed[:_SHOWN_RENAMED])
        more = f", and {len(renamed) - _SHOWN_RENAMED} more" if len(renamed) > _SHOWN_RENAMED else ""
        note(f"warning: {counted(len(renamed), 'conversation')} had an id that was taken: {shown}{more}.")
    return source


def expand_patterns(inputs: list[str]) -> list[str]:
    """The inputs with each pattern replaced by the files it matches, in order of their names.

    Raises:
        InputError: A pattern matches no file.
    """
    from tokscore.rendering.errors import InputError

    found: list[str] = []
    for name in inputs:
        if not glob.has_magic(name) or Path(name).exists():
            found.append(name)
            continue
        files = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())  # noqa: PTH207
        if not files:
            raise InputError(f"{name} matches no file; expected files of conversations.")
        found += files
    return found


def _template_time_of(out: Path | None) -> str | None:
    """The time that an earlier run into `out` took for now: what is resumed must not change with the day."""
    from tokscore.rendering.errors import InputError
    from tokscore.rendering.manifest import read_manifest

    if out is None:
        return None
    try:
        time = read_manifest(out).settings.get("template_time")
    except InputError:
        return None
    return time if isinstance(time, str) else None


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
    from tokscore.rendering.conversations import RESERVED_KWARGS
    from tokscore.rendering.errors import UsageError

    if text is None:
        return None
    value = _parse_json(text, "--template-kwargs")
    if not isinstance(value, dict):
        raise UsageError('--template-kwargs is no object; expected one such as {"enable_thinking": false}.')
    for name in sorted(RESERVED_KWARGS & set(value)):
        raise UsageError(
            f"--template-kwargs holds {name}, which transformers takes itself; it is no variable."
        )
    return value


def _read_tools(path: Path | None) -> list[dict[str, Any]] | None:  # Any: JSON values
    from tokscore.rendering.errors import UsageError

    if path is None:
        return None
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the tools in {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the tools in {path} are not UTF-8: byte {error.start} is damaged.") from error
    tools = _parse_json(text, f"--tools {path}")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"--tools {path} is no list of objects; expected the tools of an OpenAI request.")
    return tools


def _parse_json(text: str, place: str) -> Any:  # Any: JSON values
    from tokscore.rendering.errors import UsageError

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not JSON: {error}.") from error


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
