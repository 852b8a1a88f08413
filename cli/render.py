"""`tokscore render`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tokscore.cli import options
from tokscore.cli.inputs import note_outcome, open_conversations, print_plan
from tokscore.cli.options import Format
from tokscore.cli.output import Column, ProgressLine, counted, note, print_json, print_rows

if TYPE_CHECKING:
    from tokscore.rendering.dataset import Dataset

SHOWN_MESSAGES = 24
EPILOG = """Examples:

\b
  tokscore render examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o tokens
  tokscore render examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o tokens --by message --format csv
"""
ROLE_COLUMNS = (
    Column("role", "role"),
    Column("n_messages", "messages"),
    Column("n_tokens", "tokens"),
    Column("mean_tokens", "tokens/message", 1),
    Column("max_tokens", "longest"),
    Column("n_sampled", "sampled"),
    Column("n_content", "content"),
    Column("n_unknown", "sampled unknown"),
)
MESSAGE_COLUMNS = (
    Column("conversation_id", "conversation"),
    Column("message_index", "message"),
    Column("role", "role"),
    Column("n_tokens", "tokens"),
    Column("n_sampled", "sampled"),
    Column("n_content", "content"),
    Column("n_dropped_characters", "dropped chars"),
    Column("flags", "flags"),
)


def render(
    inputs: options.Inputs,
    model: options.Model,
    out: options.Out,
    template: options.Template = None,
    template_kwargs: options.TemplateKwargs = None,
    add_generation_prompt: options.GenerationPrompt = False,
    verify: options.VerifyOption = options.VerifyChoice.SAMPLE,
    on_error: options.OnErrorOption = options.OnErrorChoice.FAIL,
    revision: options.Revision = None,
    template_time: options.TemplateTime = None,
    form: options.FormatOption = Format.TABLE,
    by: options.ByOption = None,
    dry_run: options.DryRun = False,
) -> None:
    """Turn conversations into tokens that know their message, role and field.

    Writes a token dataset: tokens, spans, messages and conversations as Parquet, one row each. Running it
    again goes on where it stopped.
    """
    from tokscore.rendering.dataset import Dataset
    from tokscore.rendering.run import OnError
    from tokscore.rendering.run import render as run_render

    source = open_conversations(
        inputs,
        model,
        template,
        template_kwargs,
        add_generation_prompt,
        verify,
        revision,
        template_time,
        out,
        allow_dataset=False,
    )
    if dry_run:
        print_plan(source, form)
        return
    with ProgressLine("rendering", source.n_conversations, "conversations") as line:
        summary = run_render(source, out, on_error=OnError(on_error.value), progress=line.update)
    note_outcome(out, summary.n_failed, summary.n_parts_skipped, summary.n_parts)
    print_summary(Dataset(out), form, by)
    note(f"wrote {out}")


def print_summary(dataset: Dataset, form: Format, by: options.By | None) -> None:
    """Print tokens per role and per message of a finished dataset."""
    from tokscore.rendering import summary

    roles = [counts._asdict() for counts in summary.role_counts(dataset)]
    messages = (message._asdict() for message in summary.message_counts_of(dataset))
    if form is Format.JSON and by is None:
        print_json({"by_role": roles, "by_message": list(messages)})
        return
    if by is not options.By.MESSAGE:
        print_rows(ROLE_COLUMNS, roles, form, title="Tokens by role")
    if by is options.By.MESSAGE or (by is None and form is Format.TABLE):
        limit = SHOWN_MESSAGES if by is None else None
        rows = [{**row, "flags": ", ".join(row["flags"])} for row in itertools.islice(messages, limit)]
        print_rows(MESSAGE_COLUMNS, rows, form, title="Tokens by message")
        if next(messages, None) is not None:
            note(f"only the first {limit} messages are shown; --by message shows all.")
    for flag, n in summary.flag_counts(dataset).items():
        note(f"{counted(n, 'message')}: {flag}")
