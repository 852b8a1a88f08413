"""`tokscore drift`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from tokscore.cli.options import shared as options
from tokscore.cli.options.settings import Only, setting_options
from tokscore.cli.printing.console import note
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.progress import ProgressLine
from tokscore.cli.printing.tables import Column, counted, print_all_columns, print_json, print_rows
from tokscore.cli.running.runs import open_conversations
from tokscore.dataset.choices import OnError
from tokscore.rendering.attribution.settings import RenderSettings

SHOWN = 24
EPILOG = """Examples:

\b
  tokscore drift examples/recorded.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja
  tokscore drift examples/recorded.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja --format json
"""
COLUMNS = (
    Column("conversation_id", "conversation"),
    Column("branch", "branch"),
    Column("position", "first at"),
    Column("n_tokens", "of tokens"),
    Column("n_after", "tokens after"),
    Column("kind", "kind"),
    Column("message_index", "message"),
    Column("role", "role"),
    Column("recorded", "recorded"),
    Column("rendered", "rendered"),
)
_TAKEN = (
    "template",
    "template_kwargs",
    "tools",
    "template_timeout",
    "template_characters",
    "revision",
    "trust_remote_code",
    "template_time",
    "input_format",
    "map",
    "messages",
)
SUMMARY = (
    Column("kind", "kind"),
    Column("n_branches", "branches"),
    Column("n_after", "tokens after"),
)


@setting_options
def drift(
    inputs: options.Inputs,
    model: options.Model,
    *,
    rendering: Annotated[RenderSettings, Only(_TAKEN)],
    on_error: options.OnErrorNoted = OnError.FAIL,
    form: options.FormatOption = Format.TABLE,
    wide: options.Wide = False,
) -> None:
    """Show where rendering recorded trajectories again would give other ids than the model saw.

    Compares the recorded ids of every conversation with the template's rendering of its messages and says
    where they part first and why. Nothing is written.
    """
    print_all_columns(wide)
    from tokscore.dataset.errors import InputError
    from tokscore.rendering.drift import Drift, DriftKind, NotRecorded
    from tokscore.rendering.drift import drift as find
    from tokscore.rendering.source import ConversationSource

    source = open_conversations(inputs, model, rendering, None, allow_dataset=False)
    assert isinstance(source, ConversationSource)
    found: list[Drift] = []
    n_same = n_truncated = n_not_recorded = n_failed = n_tokens = 0
    with ProgressLine("comparing", source.n_conversations, "conversations") as line:
        for n_done, item in enumerate(find(source), 1):
            if isinstance(item, NotRecorded):
                n_not_recorded += 1
            elif not isinstance(item, Drift):
                if on_error is OnError.FAIL:
                    raise item.error()
                note(f"skipped: {item.skipped().error()}")
                n_failed += 1
            else:
                n_tokens += item.n_tokens
                if item.kind is None:
                    n_same += 1
                elif item.kind is DriftKind.TRUNCATED:
                    n_truncated += 1
                else:
                    found.append(item)
            line.update(n_done, n_tokens)
    if not n_same and not n_truncated and not found:
        raise InputError(
            f"no conversation of {', '.join(Path(name).name for name in inputs)} could be compared: "
            f"{n_not_recorded:,} without recorded token ids, {n_failed:,} that could not be read.\n"
            "tokscore formats lists the formats that carry ids."
        )
    rows = [{**item._asdict(), "kind": str(item.kind)} for item in found]
    branches, after = Counter(str(item.kind) for item in found), Counter[str]()
    for item in found:
        after[str(item.kind)] += item.n_after
    summary = [{"kind": kind, "n_branches": n, "n_after": after[kind]} for kind, n in branches.most_common()]
    if form is Format.JSON:
        print_json(
            {
                "n_same": n_same,
                "n_truncated": n_truncated,
                "n_drifted": len(found),
                "n_not_recorded": n_not_recorded,
                "n_failed": n_failed,
                "n_tokens": n_tokens,
                "by_kind": summary,
                "drifted": rows,
            }
        )
    elif form is Format.CSV:
        print_rows(COLUMNS, rows, form)
    else:
        print_rows(SUMMARY, summary, form, title="Drift by kind")
        shown = [
            {**row, "recorded": repr(row["recorded"]), "rendered": repr(row["rendered"])} for row in rows
        ]
        print_rows(COLUMNS, shown[:SHOWN], form, title="First differences")
        if len(rows) > SHOWN:
            note(f"only the first {SHOWN} are shown; --format json or csv shows all.")
    note(
        f"of {counted(n_same + n_truncated + len(found), 'recorded sequence')}, {n_same:,} rendered to the "
        f"same ids, {n_truncated:,} up to where the answer was cut, and {len(found):,} did not; "
        f"{n_not_recorded:,} had no ids or no text."
    )
