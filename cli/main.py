"""The `tokscore` command."""

from __future__ import annotations

import os
import signal
import sys
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
from tokscore.cli.options.shared import option
from tokscore.cli.printing.option_names import as_options

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
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "TOKSCORE", "help_option_names": ["-h", "--help"]},
)
app.command("render", epilog=render.EPILOG)(render.render)
app.command("logprobs", epilog=logprobs.EPILOG)(logprobs.logprobs)
app.command("diff", epilog=diff.EPILOG)(diff.diff)
app.command("stats", epilog=stats.EPILOG)(stats.stats)
app.command("show", epilog=show.EPILOG)(show.show)
app.command("drift", epilog=drift.EPILOG)(drift.drift)
app.command("select", epilog=select.EPILOG)(select.select)
app.command("export", epilog=export.EPILOG)(export.export)
app.command("selfcheck", epilog=selfcheck.EPILOG)(selfcheck.selfcheck)
app.command("template", epilog=template.EPILOG)(template.template)
app.command("formats", epilog=formats.EPILOG)(formats.formats)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("tokscore"))
        raise typer.Exit


@app.callback()
def tokscore(
    version: Annotated[
        bool,
        option(
            "--version",
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


def main() -> None:
    """Run the command line and exit; expected failures end without a traceback."""
    from tokscore.dataset.errors import ExitCode, TokscoreError

    # Otherwise a terminated run would leave its temporary files behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    try:
        app(prog_name="tokscore")
    except TokscoreError as error:
        print(f"error: {as_options(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as ending:
        if ending.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            print(
                "interrupted; finished parts are kept, the same command goes on from there.", file=sys.stderr
            )
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {place}{error.strerror}.", file=sys.stderr)
        sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    main()
