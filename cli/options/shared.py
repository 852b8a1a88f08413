"""Options that several commands share; the same name means the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tokscore.cli.options.completion import columns
from tokscore.cli.printing.option_names import OPTIONS
from tokscore.cli.printing.output_format import Format
from tokscore.dataset.choices import GroupBy, LimitCount, OnError
from tokscore.dataset.errors import UsageError
from tokscore.dataset.settings import MAX_INTEGER


def option(*names: str, **settings: Any) -> Any:  # Any: passed through to typer
    """An option whose environment variable is not repeated in every line of the help.

    A number with a smallest value has a largest one, too: that of the integers of tables.
    """
    OPTIONS[names[0].lstrip("-").replace("-", "_")] = names[0]
    if "min" in settings:
        settings.setdefault("callback", _at_most)
    return typer.Option(*names, show_envvar=False, **settings)


def _at_most(parameter: typer.CallbackParam, value: object) -> object:
    """The value of an option, if tables can hold it.

    Raises:
        UsageError: It is a larger integer.
    """
    if isinstance(value, int) and value > MAX_INTEGER:
        raise UsageError(f"`{parameter.name}` is {value}; expected at most {MAX_INTEGER}.")
    return value


class By(StrEnum):
    """The meaning of a row of a summary."""

    ROLE = "role"
    MESSAGE = "message"


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files of conversations (JSON Lines, a JSON array or Parquet, in any of tokscore formats) or of "
        "plain text (.txt), patterns such as 'rollouts/*.jsonl', URLs such as s3://bucket/*.jsonl.gz, or - "
        "for standard input.",
    ),
]
InputsOrDataset = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files of conversations (JSON Lines, a JSON array or Parquet, in any of tokscore formats) or of "
        "plain text (.txt), patterns, URLs, - for standard input, or one dataset, of which the tokens are "
        "taken.",
    ),
]
Model = Annotated[
    str,
    option("--model", "-m", metavar="MODEL", help="Model directory or hub id.", show_default=False),
]

ModelOrServed = Annotated[
    str | None,
    option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Model directory or hub id; with --url, what the server says that it has if left out.",
        show_default=False,
    ),
]


def output_path(name: str) -> Path:
    """The place that an option names, also in a store."""
    from tokscore.dataset.files import output_location

    return output_location(name)


Out = Annotated[
    Path,
    option(
        "--out",
        "-o",
        metavar="DIR",
        help="Directory of the dataset to write, or URL of a store.",
        show_default=False,
        parser=output_path,
    ),
]
OptionalOut = Annotated[
    Path | None,
    option(
        "--out",
        "-o",
        metavar="DIR",
        help="Directory of the dataset to write, or URL of a store; --dry-run needs none.",
        show_default=False,
        parser=output_path,
    ),
]
Scratch = Annotated[
    Path | None,
    option(
        "--scratch",
        metavar="DIR",
        help="Directory of this machine for copies of inputs and parts on their way into a store; TMPDIR by "
        "default.",
    ),
]
Workers = Annotated[
    int | None,
    option(
        "--workers",
        metavar="N",
        min=1,
        help="Processes that render; by default one a core. The output does not depend on it, memory does.",
    ),
]
OnErrorOption = Annotated[
    OnError,
    option("--on-error", help="End at the first bad conversation, or list it in errors/ and go on."),
]
OnErrorNoted = Annotated[
    OnError,
    option("--on-error", help="End at the first bad conversation, or leave it out with a note and go on."),
]
FormatOption = Annotated[
    Format, option("--format", envvar="TOKSCORE_FORMAT", help="How to print the result.")
]
Wide = Annotated[
    bool,
    option("--wide", help="Print all columns of tables, also those that the terminal has no room for."),
]
DryRun = Annotated[bool, option("--dry-run", help="Print the plan and its size, and write nothing.")]
ExactPlan = Annotated[
    bool, option("--exact-plan", help="Let --dry-run count the tokens of all input instead of a sample.")
]
ByOption = Annotated[
    By | None,
    option("--by", help="Print one row a role or one a message; both, shortened, if left out."),
]
Groups = Annotated[
    list[str] | None,
    option(
        "--by",
        metavar="NAME[,NAME...]",
        help=f"What the rows stand for: {', '.join(GroupBy)} or metadata.NAME, or several of them.",
        autocompletion=columns,
        show_default="role",
    ),
]
Sort = Annotated[
    str | None,
    option(
        "--sort",
        metavar="NUMBER",
        help="Order of the rows, by a number under its name in --format json, dotted where it is nested: "
        "largest first, with - before it smallest first.",
    ),
]
Top = Annotated[int | None, option("--top", metavar="N", min=1, help="Print the first N groups only.")]
Worst = Annotated[
    int | None,
    option(
        "--worst",
        metavar="N",
        min=1,
        help="Print the N conversations instead that diverge most; of one dataset, those with the lowest "
        "mean logprob.",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    option(
        "--limit",
        metavar="NAME=N",
        help="Instead, tell which trajectories N turns (max_turns) or tokens (input, output, total) would "
        "have stopped, and after which turn; input behind the last turn does not count. May be given "
        "several times.",
    ),
]
LimitCountOption = Annotated[
    LimitCount,
    option("--limit-count", help="For --limit, count tokens that branches share once, or once a branch."),
]
