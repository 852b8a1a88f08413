"""`tokscore render`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from tokscore.cli.options import shared as options
from tokscore.cli.options.execution import Processes
from tokscore.cli.options.settings import setting_options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.explain import print_explanation
from tokscore.cli.printing.message_notes import note_control_tokens, note_flags, note_roles
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.printing.tables import Column, print_json_with_rows, print_rows
from tokscore.cli.running.plan import print_plan
from tokscore.cli.running.runs import note_outcome, note_statuses, open_conversations, use_scratch
from tokscore.dataset.choices import Executor, OnError
from tokscore.rendering.attribution.settings import RenderSettings

if TYPE_CHECKING:
    from tokscore.dataset.reading import Dataset
    from tokscore.rendering.source import ConversationSource

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
    Column("n_control_tokens", "control in content"),
)
MESSAGE_COLUMNS = (
    Column("conversation_id", "conversation"),
    Column("branch", "branch"),
    Column("message_index", "message"),
    Column("role", "role"),
    Column("n_tokens", "tokens"),
    Column("n_sampled", "sampled"),
    Column("n_content", "content"),
    Column("n_dropped_characters", "dropped chars"),
    Column("n_control_tokens", "control in content"),
    Column("flags", "flags"),
)


@setting_options
def render(
    inputs: options.Inputs,
    model: options.Model,
    *,
    out: options.OptionalOut = None,
    rendering: RenderSettings,
    on_error: options.OnErrorOption = OnError.FAIL,
    scratch: options.Scratch = None,
    workers: options.Workers = None,
    processes: Processes,
    form: options.FormatOption = Format.TABLE,
    by: options.ByOption = None,
    dry_run: options.DryRun = False,
    exact_plan: options.ExactPlan = False,
    explain: Annotated[
        str | None,
        options.option(
            "--explain",
            metavar="ID",
            help="Print the tokens of one conversation, of all its branches, with their owners instead.",
        ),
    ] = None,
) -> None:
    """Turn conversations into tokens that know their message, role and field.

    Writes a token dataset: tokens, spans, messages and conversations as Parquet, one row each. Running it
    again goes on where it stopped.
    """
    from tokscore.dataset.errors import UsageError
    from tokscore.dataset.reading import Dataset
    from tokscore.rendering.executors.devices import all_cores
    from tokscore.rendering.run import render_source
    from tokscore.rendering.source import ConversationSource

    if out is None and explain is None and not dry_run:
        raise UsageError("there is nowhere to write: give -o DIR, or --explain ID to look at a conversation.")
    use_scratch(scratch)
    chosen = processes.execution()
    source = open_conversations(inputs, model, rendering, out, allow_dataset=False)
    if dry_run:
        print_plan(source, form, exact=exact_plan, on_error=on_error)
        return
    assert isinstance(source, ConversationSource)
    if explain is not None:
        explain_conversation(source, explain, form)
        return
    assert out is not None
    if processes.executor is Executor.SLURM:
        from tokscore.cli.running.slurm import submit_array

        submit_array(out, processes)
        return
    unit = ("conversations", source.n_conversations) if chosen.is_here else ("parts", len(source.parts))
    with ProgressLine("rendering", unit[1], unit[0]) as line:
        summary = render_source(
            source,
            out,
            on_error=on_error,
            workers=workers or all_cores(),
            progress=line.update,
            execution=chosen,
            tell=note,
        )
    if summary.tokenizer_reason is not None:
        note(f"ids were made by {summary.tokenizer}: {summary.tokenizer_reason}.")
    note_outcome(out, summary.n_parts_skipped, summary.n_parts)
    note_statuses(Dataset(out))
    print_summary(Dataset(out), form, by, template=source.renderer.templates())
    note(f"wrote {out}")


def explain_conversation(source: ConversationSource, conversation_id: str, form: Format) -> None:
    """Print one conversation token by token, with all its branches.

    Raises:
        InputError: There is no such conversation, or it cannot be rendered.
        DifferenceError: transformers renders it otherwise; it is printed all the same.
    """
    from tokscore.rendering.explain import explain

    branches = explain(source, conversation_id)
    print_explanation(branches, form)
    for explanation in branches:
        if explanation.difference is not None:
            raise explanation.difference.at(f"{explanation.source_file}:{explanation.source_line}")


def print_summary(dataset: Dataset, form: Format, by: options.By | None, *, template: str = "") -> None:
    """Print tokens per role and per message of a finished dataset, and what to know of its messages.

    Args:
        dataset: Of tokens.
        form: How to print it.
        by: What the rows stand for.
        template: That printed the messages.
    """
    from tokscore.analytics.groups import dataset_notes as summary

    by_role = summary.role_counts(dataset)
    roles = [counts._asdict() for counts in by_role]
    messages = (message._asdict() for message in summary.message_counts_of(dataset))
    flags = summary.flag_counts(dataset)
    note_flags(flags, dataset, has_all=form is Format.JSON and by is None)
    note_control_tokens(dataset)
    meant = note_roles(dataset, by_role, template)
    if form is Format.JSON and by is None:
        document = {
            "by_role": roles,
            "changed": flags.changed,
            "not_printed": flags.not_printed,
            "meant_roles": meant,
        }
        print_json_with_rows(document, "by_message", messages)
        return
    if by is not options.By.MESSAGE:
        print_rows(ROLE_COLUMNS, roles, form, title="Tokens by role")
    if by is options.By.MESSAGE:
        rows: Iterable[dict[str, object]] = ({**row, "flags": ", ".join(row["flags"])} for row in messages)
        columns: Sequence[Column] = MESSAGE_COLUMNS
        if form is Format.TABLE:
            rows = list(rows)
            has_branches = any(row["branch"] for row in rows)
            columns = [each for each in columns if has_branches or each.key != "branch"]
        print_rows(columns, rows, form, title="Tokens by message")
