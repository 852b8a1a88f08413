"""Options that several commands share; the same name means the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tokscore.cli.printing.output_format import Format


def option(*names: str, **settings: Any) -> Any:  # Any: passed through to typer
    """An option whose environment variable is not repeated in every line of the help."""
    return typer.Option(*names, show_envvar=False, **settings)


class OnErrorChoice(StrEnum):
    """What one bad conversation does to a run."""

    FAIL = "fail"
    SKIP = "skip"


class VerifyChoice(StrEnum):
    """How much of the rendering is compared with transformers."""

    SAMPLE = "sample"
    FULL = "full"
    OFF = "off"


class MessagesChoice(StrEnum):
    """How messages are shown to the template."""

    AUTO = "auto"
    SERVER = "server"
    AS_IS = "as-is"


class TruncateChoice(StrEnum):
    """What happens to a conversation with more tokens than --max-tokens."""

    ERROR = "error"
    LEFT = "left"
    RIGHT = "right"


class GroupBy(StrEnum):
    """Token columns that make the rows of a report."""

    ROLE = "role"
    MESSAGE_INDEX = "message_index"
    BRANCH = "branch"
    SOURCE = "source"
    IS_CONTENT = "is_content"
    IS_SAMPLED = "is_sampled"
    POSITION = "position"
    CONVERSATION_ID = "conversation_id"


class SamplerChoice(StrEnum):
    """The model that sampled the tokens."""

    TEACHER = "teacher"
    STUDENT = "student"


class AlignChoice(StrEnum):
    """Which tokens of two datasets are compared."""

    TOKENS = "tokens"
    CONTENT = "content"


class EngineChoice(StrEnum):
    """What computes the logprobs."""

    AUTO = "auto"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


class DtypeChoice(StrEnum):
    """Type a model computes in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class LimitCountChoice(StrEnum):
    """How often limits count tokens that branches share."""

    UNIQUE = "unique"
    BRANCHES = "branches"


class MetricChoice(StrEnum):
    """What a token strip shows."""

    LOGPROB = "logprob"
    RANK = "rank"
    ENTROPY = "entropy"
    GJS = "gjs"
    DELTA = "delta"


class By(StrEnum):
    """What the rows of a summary stand for."""

    ROLE = "role"
    MESSAGE = "message"


TEMPLATE_TIMEOUT_S = 30.0
TEMPLATE_CHARACTERS = 2**26

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files of conversations (JSON Lines, a JSON array or Parquet, in any of tokscore formats), "
        "patterns such as 'rollouts/*.jsonl', or - for standard input.",
    ),
]
InputsOrDataset = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files of conversations (JSON Lines, a JSON array or Parquet, in any of tokscore formats), "
        "patterns, - for standard input, or one token dataset.",
    ),
]
Model = Annotated[
    str,
    option("--model", "-m", metavar="MODEL", help="Model directory or hub id.", show_default=False),
]
Out = Annotated[
    Path,
    option("--out", "-o", metavar="DIR", help="Directory of the dataset to write.", show_default=False),
]
OptionalOut = Annotated[
    Path | None,
    option(
        "--out",
        "-o",
        metavar="DIR",
        help="Directory of the dataset to write; --dry-run needs none.",
        show_default=False,
    ),
]
Template = Annotated[
    Path | None,
    option("--template", metavar="FILE", help="Chat template to use instead of the model's own."),
]
TemplateKwargs = Annotated[
    str | None,
    option(
        "--template-kwargs",
        metavar="JSON",
        help="Variables for the template: '{\"enable_thinking\": false}'.",
    ),
]
Tools = Annotated[
    Path | None,
    option("--tools", metavar="FILE", help="JSON list of tool definitions for records that carry none."),
]
MaxTokens = Annotated[
    int | None,
    option("--max-tokens", metavar="N", min=1, help="Most tokens a conversation may have."),
]
TruncateOption = Annotated[
    TruncateChoice | None,
    option(
        "--truncate",
        help="Longer conversations: an error row each, or keep the last (left) or first (right) N tokens.",
        show_default="error",
    ),
]
TemplateTimeout = Annotated[
    float,
    option(
        "--template-timeout",
        metavar="S",
        min=0,
        help="Processor seconds the template may take for one conversation.",
    ),
]
TemplateCharacters = Annotated[
    int,
    option(
        "--template-characters",
        metavar="N",
        min=1,
        help="Characters the template may build for one conversation, beyond 50 times its length.",
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
GenerationPrompt = Annotated[
    bool,
    option("--add-generation-prompt", help="End each conversation with the opener of the next answer."),
]
TemplateTime = Annotated[
    str | None,
    option(
        "--template-time",
        metavar="ISO",
        help="Date, and time, that templates which print it take for now; the clock's if left out.",
    ),
]
VerifyOption = Annotated[
    VerifyChoice,
    option(
        "--verify",
        help="Compare with transformers: all texts and a sample of ids, all ids (full), or nothing (off).",
    ),
]
OnErrorOption = Annotated[
    OnErrorChoice,
    option("--on-error", help="End at the first bad conversation, or list it in errors/ and go on."),
]
OnErrorNoted = Annotated[
    OnErrorChoice,
    option("--on-error", help="End at the first bad conversation, or leave it out with a note and go on."),
]
Revision = Annotated[
    str | None, option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
]
TrustRemoteCode = Annotated[
    bool,
    option(
        "--trust-remote-code",
        help="Run Python code that comes with the model. It can do whatever you can: read it first.",
    ),
]
InputFormat = Annotated[
    str | None,
    option(
        "--input-format",
        metavar="NAME",
        help="Format of the input, as listed by tokscore formats; found by looking if left out.",
    ),
]
MessagesOption = Annotated[
    MessagesChoice | None,
    option(
        "--messages",
        help="Show messages to the template as they are (as-is), as servers do (server: arguments parsed, "
        'null content "", ...), or as servers do where the template refuses them or a server recorded them.',
        show_default="auto",
    ),
]
FormatOption = Annotated[
    Format, option("--format", envvar="TOKSCORE_FORMAT", help="How to print the result.")
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
        show_default="role",
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
    LimitCountChoice,
    option("--limit-count", help="For --limit, count tokens that branches share once, or once a branch."),
]
