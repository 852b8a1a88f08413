"""Opening what a user named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokscore.cli.options import Format, VerifyChoice
from tokscore.cli.output import Column, counted, note, print_rows

if TYPE_CHECKING:
    from tokscore.rendering.source import ConversationSource, DatasetSource

_SHOWN_RENAMED = 3


def open_conversations(
    inputs: list[str],
    model: str,
    template: Path | None,
    template_kwargs: str | None,
    add_generation_prompt: bool,
    verify: VerifyChoice,
    revision: str | None,
    template_time: str | None,
    out: Path,
    *,
    allow_dataset: bool,
) -> ConversationSource | DatasetSource:
    """The token source for the arguments of render and logprobs.

    Raises:
        UsageError: Options that do not fit the inputs or are no JSON.
        InputError: An input, the tokenizer or the template cannot be used.
    """
    from tokscore.rendering.errors import UsageError
    from tokscore.rendering.renderer import Verify
    from tokscore.rendering.source import ConversationSource, open_source

    source = open_source(
        inputs,
        model,
        template=template,
        template_kwargs=_parse_object(template_kwargs),
        add_generation_prompt=add_generation_prompt,
        verify=Verify(verify.value),
        revision=revision,
        template_time=template_time or _template_time_of(out),
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


def _template_time_of(out: Path) -> str | None:
    """The time that an earlier run into `out` took for now: what is resumed must not change with the day."""
    from tokscore.rendering.errors import InputError
    from tokscore.rendering.manifest import read_manifest

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
        note(f"{n_parts_skipped} of {n_parts} parts were done already.")
    if n_failed:
        note(f"{counted(n_failed, 'conversation')} failed, listed in {out / 'errors'}.")


def _parse_object(text: str | None) -> dict[str, Any] | None:  # Any: JSON values
    from tokscore.rendering.conversations import RESERVED_KWARGS
    from tokscore.rendering.errors import UsageError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--template-kwargs is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UsageError('--template-kwargs is no object; expected one such as {"enable_thinking": false}.')
    for name in sorted(RESERVED_KWARGS & set(value)):
        raise UsageError(
            f"--template-kwargs holds {name}, which transformers takes itself; it is no variable."
        )
    return value


def print_plan(source: ConversationSource | DatasetSource, form: Format) -> None:
    """Print what a run would read, for `--dry-run`."""
    rows: list[dict[str, str | int | float | bool | None]] = [
        {
            "input": file.name,
            "size_bytes": file.size_bytes,
            "n_parts": sum(part.file == i for part in source.parts),
        }
        for i, file in enumerate(source.inputs)
    ]
    columns = (Column("input", "input"), Column("size_bytes", "bytes"), Column("n_parts", "parts"))
    print_rows(columns, rows, form, title=f"Plan: {source.n_conversations:,} conversations")
    note("nothing was written (--dry-run).")
