"""Opening what a user named on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokscore.cli.options import Format, VerifyChoice
from tokscore.cli.output import Column, note, print_rows

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
    )
    if not isinstance(source, ConversationSource):
        if not allow_dataset:
            raise UsageError(f"{inputs[0]} is a dataset already; expected files of conversations.")
        return source
    renamed = source.plan.renamed
    if renamed:
        shown = ", ".join(f"{wanted} is now {unique}" for wanted, unique in renamed[:_SHOWN_RENAMED])
        more = f", and {len(renamed) - _SHOWN_RENAMED} more" if len(renamed) > _SHOWN_RENAMED else ""
        note(f"warning: {len(renamed)} conversations had an id that was taken: {shown}{more}.")
    return source


def _parse_object(text: str | None) -> dict[str, Any] | None:  # Any: JSON values
    from tokscore.rendering.errors import UsageError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--template-kwargs is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UsageError('--template-kwargs is no object; expected one such as {"enable_thinking": false}.')
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
