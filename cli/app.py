"""All commands of `tokscore`."""

from __future__ import annotations

from typing import Annotated

import typer

from tokscore.cli import (
    diff,
    drift,
    export,
    formats,
    logprobs,
    render,
    select,
    selfcheck,
    show,
    stats,
    template,
)
from tokscore.cli.options.help import GroupedCommand
from tokscore.cli.options.shared import option
from tokscore.cli.outputs import merge, status, verify
from tokscore.cli.printing.console import write

# Longer lines are hard to read.
MAX_WIDTH = 120
EPILOG = """Examples:

\b
  tokscore render examples/conversations.jsonl -m ~/.cache/tokscore/models/smollm2-135m-instruct \\
      --template examples/chatml_tools.jinja -o tokens
  tokscore logprobs tokens -m ~/.cache/tokscore/models/smollm2-135m-instruct -o scores
"""

app = typer.Typer(
    name="tokscore",
    epilog=EPILOG,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={
        "auto_envvar_prefix": "TOKSCORE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": MAX_WIDTH,
    },
)
app.command("render", cls=GroupedCommand, epilog=render.EPILOG)(render.render)
app.command("logprobs", cls=GroupedCommand, epilog=logprobs.EPILOG)(logprobs.logprobs)
app.command("diff", cls=GroupedCommand, epilog=diff.EPILOG)(diff.diff)
app.command("stats", cls=GroupedCommand, epilog=stats.EPILOG)(stats.stats)
app.command("show", cls=GroupedCommand, epilog=show.EPILOG)(show.show)
app.command("drift", cls=GroupedCommand, epilog=drift.EPILOG)(drift.drift)
app.command("select", cls=GroupedCommand, epilog=select.EPILOG)(select.select)
app.command("export", cls=GroupedCommand, epilog=export.EPILOG)(export.export)
app.command("merge", cls=GroupedCommand, epilog=merge.EPILOG)(merge.merge)
app.command("status", cls=GroupedCommand, epilog=status.EPILOG)(status.status)
app.command("verify", cls=GroupedCommand, epilog=verify.EPILOG)(verify.verify)
app.command("selfcheck", cls=GroupedCommand, epilog=selfcheck.EPILOG)(selfcheck.selfcheck)
app.command("template", cls=GroupedCommand, epilog=template.EPILOG)(template.template)
app.command("formats", cls=GroupedCommand, epilog=formats.EPILOG)(formats.formats)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        write(version("tokscore") + "\n")
        raise typer.Exit


@app.callback()
def tokscore(
    version: Annotated[
        bool,
        option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            allow_from_autoenv=False,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Score saved conversations offline: exact tokens, who said them, how likely they are, how models differ.

    Every option can also be set as TOKSCORE_COMMAND_OPTION, for example TOKSCORE_LOGPROBS_TOP_K.
    """
